#pragma once

#include <source_location>
#include <string_view>

namespace protean {

[[noreturn]] void check_failed(std::string_view what, const std::source_location& where);

// An invariant of ours. Kept in release: a wrong answer served is worse than a process that stops.
inline void check(bool holds, std::string_view what,
                  const std::source_location& where = std::source_location::current()) {
  if (!holds) [[unlikely]] {
    check_failed(what, where);
  }
}

}  // namespace protean
