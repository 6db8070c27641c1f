#include "worker/use_meter.h"

#include <algorithm>
#include <chrono>

namespace protean {

TimeNs UseMeter::now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void UseMeter::step_begins(TimeNs now_ns) {
  const std::lock_guard lock(mutex_);
  count_until(now_ns);
  ++in_flight_;
}

void UseMeter::step_ends(TimeNs now_ns) {
  const std::lock_guard lock(mutex_);
  count_until(now_ns);
  --in_flight_;
}

void UseMeter::computed(TimeNs took_ns) {
  const std::lock_guard lock(mutex_);
  use_.busy_ns += took_ns;
}

DeviceUse UseMeter::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

// Two threads may take the lock in another order than they have read the clock.
void UseMeter::count_until(TimeNs now_ns) {
  if (in_flight_ > 0) {
    use_.span_ns += devices_ * std::max<TimeNs>(0, now_ns - counted_until_ns_);
  }
  counted_until_ns_ = std::max(counted_until_ns_, now_ns);
}

}  // namespace protean
