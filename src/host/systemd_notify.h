#pragma once

#include <string_view>

namespace protean {

// Tells systemd, where it started us with Type=notify, what we are at (sd_notify(3)): "READY=1".
// Does nothing elsewhere.
void notify_systemd(std::string_view state);

// How often a WATCHDOG=1 keeps systemd from restarting us: half of what it allows; 0: it does not
// watch.
int watchdog_interval_ms();

}  // namespace protean
