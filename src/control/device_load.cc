#include "control/device_load.h"

#include <algorithm>

#include "base/check.h"

namespace protean {

void DeviceLoad::busy(TimeNs from_ns, TimeNs to_ns) {
  check(from_ns >= 0 && from_ns <= to_ns, "a device is busy from one moment to a later one");
  const std::int64_t last = to_ns / kNsPerS;
  for (std::int64_t number = std::max(from_ns / kNsPerS, last - kWindowSeconds); number <= last;
       ++number) {
    Second& second = seconds_[static_cast<std::size_t>(number) % seconds_.size()];
    if (second.number != number) {
      second = {.number = number};
    }
    second.busy_ns += std::min(to_ns, (number + 1) * kNsPerS) - std::max(from_ns, number * kNsPerS);
  }
}

double DeviceLoad::load(TimeNs now_ns) const {
  const std::int64_t end = now_ns / kNsPerS;
  TimeNs busy_ns = 0;
  for (const Second& second : seconds_) {
    if (second.number >= 0 && second.number < end && second.number >= end - kWindowSeconds) {
      busy_ns += second.busy_ns;
    }
  }
  return static_cast<double>(busy_ns) / static_cast<double>(kWindowSeconds * kNsPerS);
}

}  // namespace protean
