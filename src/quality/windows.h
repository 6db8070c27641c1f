#pragma once

#include <cstddef>
#include <vector>

namespace protean {

// A piece of a document that is scored in one go: tokens [begin, end) are read, those from
// `first_scored` on count. Tokens before it are context only.
struct Window {
  std::size_t document = 0;
  int begin = 0;
  int first_scored = 0;
  int end = 0;
};

// Cuts a document of `tokens` tokens into windows of at most `context` tokens, each of which scores
// at most `stride` new ones, so that all but the document's first token are scored exactly once,
// after at least context - stride tokens where there are so many. 1 <= stride < context.
std::vector<Window> cut_windows(std::size_t document, int tokens, int context, int stride);

}  // namespace protean
