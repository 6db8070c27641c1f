#pragma once

#include <string_view>

namespace protean {

[[noreturn]] void check_failed(std::string_view what, const char* file, int line);

// An invariant of ours. Kept in release: a wrong answer served is worse than a process that stops.
// The builtins, because Clang 14 has no std::source_location.
inline void check(bool holds, std::string_view what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!holds) [[unlikely]] {
    check_failed(what, file, line);
  }
}

}  // namespace protean
