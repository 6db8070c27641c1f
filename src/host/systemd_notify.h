#pragma once

#include <string_view>

namespace protean {

// Sends a state such as "READY=1" to systemd (sd_notify(3)). Does nothing if systemd did not start
// this process with Type=notify.
void notify_systemd(std::string_view state);

// Returns the interval at which to send WATCHDOG=1, half of what systemd allows; 0 if its watchdog
// is off.
int watchdog_interval_ms();

}  // namespace protean
