#pragma once

#include <algorithm>

#include "base/units.h"

namespace protean {

// How steps have used the devices of a replica or group since it serves with these devices. A
// device is busy while it computes its part of a step. It idles while it waits for another device,
// or until an earlier device has its next step.
struct DeviceUse {
  TimeNs busy_ns = 0;  // summed over devices
  TimeNs span_ns = 0;  // time with a step in flight, times the number of devices

  // The share of the span in which devices idled.
  double bubble_share() const {
    return span_ns > 0
               ? std::max(0.0, 1 - static_cast<double>(busy_ns) / static_cast<double>(span_ns))
               : 0;
  }
  DeviceUse& operator+=(const DeviceUse& more) {
    busy_ns += more.busy_ns;
    span_ns += more.span_ns;
    return *this;
  }
};

}  // namespace protean
