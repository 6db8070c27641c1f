#pragma once

#include <mutex>

#include "base/units.h"
#include "contract/device_use.h"

namespace protean {

// Measures the DeviceUse of a group. Any thread may call.
class UseMeter {
 public:
  explicit UseMeter(int devices) : devices_(devices) {}

  static TimeNs now_ns();  // of the clock that all times are by

  void step_begins(TimeNs now_ns);
  void step_ends(TimeNs now_ns);
  // A device has computed its part of a step for so long, not counting what it has waited.
  void computed(TimeNs took_ns);

  // Steps in flight are counted until the last one that has begun or ended.
  DeviceUse use() const;

 private:
  void count_until(TimeNs now_ns);

  const int devices_;
  mutable std::mutex mutex_;
  DeviceUse use_;
  int in_flight_ = 0;
  TimeNs counted_until_ns_ = 0;
};

}  // namespace protean
