#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace protean {

using CountProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// A bar on standard error that redraws itself, for a number of bytes. Draws nothing if standard
// error is not a terminal.
CountProgress progress_bar(std::string what);

// A bar on standard error that redraws itself, for a number of `things`.
CountProgress count_bar(std::string what, std::string things);

// Erases an unfinished bar, so that a message can take its line.
void clear_bar();

}  // namespace protean
