#pragma once

// Says how often a test repeats what it tries at random: less often in instrumented builds, which
// take ten times as long.

#include <algorithm>
#include <cstdlib>

namespace protean {

// True if PROTEAN_SANITIZED is set, as it is for the tests of a build with sanitizers.
inline bool instrumented() {
  return std::getenv("PROTEAN_SANITIZED") != nullptr;
}

// Returns `plain`, or a third of it in an instrumented build.
inline int repetitions(int plain) {
  return instrumented() ? std::max(1, plain / 3) : plain;
}

}  // namespace protean
