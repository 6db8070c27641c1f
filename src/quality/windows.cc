#include "quality/windows.h"

#include <algorithm>

#include "base/check.h"

namespace protean {

std::vector<Window> cut_windows(std::size_t document, int tokens, int context, int stride) {
  check(stride >= 1 && stride < context, "a window scores fewer tokens than it reads");
  std::vector<Window> windows;
  int scored = 1;  // the first token has no context and so no likelihood
  while (scored < tokens) {
    // The first window has no earlier context, so it scores all that it can read.
    const int end = windows.empty() ? std::min(tokens, context) : std::min(tokens, scored + stride);
    windows.push_back({.document = document,
                       .begin = std::max(0, end - context),
                       .first_scored = scored,
                       .end = end});
    scored = end;
  }
  return windows;
}

}  // namespace protean
