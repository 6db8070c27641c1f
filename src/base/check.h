#pragma once

#include <string_view>

namespace protean {

[[noreturn]] void check_failed(std::string_view what, const char* file, int line);

// Stops the program if an invariant does not hold. Release builds keep it: a wrong answer served is
// worse than a process that stops. Uses builtins because Clang 14 has no std::source_location.
inline void check(bool holds, std::string_view what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!holds) [[unlikely]] {
    check_failed(what, file, line);
  }
}

}  // namespace protean
