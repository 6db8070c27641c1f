#pragma once

// Writes one line for each event that an operator wants to know of, to standard error. Thread-safe.
// Hot paths do not log.

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace protean::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

void set_level(Level level);
void write(Level level, std::string_view line);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace protean::log
