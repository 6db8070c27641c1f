#pragma once

#include "base/result.h"

namespace protean {

// Prints the error in one line on standard error. Returns the exit code: 2 for what the user can
// mend, 1 otherwise.
int exit_with(const Error& error);

inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as in shells

}  // namespace protean
