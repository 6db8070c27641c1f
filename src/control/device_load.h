#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace protean {

// The load of a device: the share of the last 120 seconds in which it was busy, sampled each second
// (iServe section 6). O(1) memory. Times must not go back.
class DeviceLoad {
 public:
  static constexpr std::int64_t kWindowSeconds = 120;

  // The device was busy from `from_ns` to `to_ns`.
  void busy(TimeNs from_ns, TimeNs to_ns);

  // Returns the share of the 120 whole seconds before `now_ns`; time before 0 counts as idle.
  double load(TimeNs now_ns) const;

 private:
  struct Second {
    std::int64_t number = -1;  // since time 0
    TimeNs busy_ns = 0;
  };
  std::array<Second, kWindowSeconds + 1> seconds_{};  // the one that runs, and those before it
};

}  // namespace protean
