#pragma once

#include <cstddef>
#include <vector>

namespace protean {

// A piece of a document that is scored at once. The model reads tokens [begin, end); those from
// `first_scored` on are scored, those before are context.
struct Window {
  std::size_t document = 0;
  int begin = 0;
  int first_scored = 0;
  int end = 0;
};

// Cuts a document into windows of at most `context` tokens that score at most `stride` new tokens
// each. Every token but the document's first is scored exactly once, after at least
// context - stride tokens if there are so many. 1 <= stride < context.
std::vector<Window> cut_windows(std::size_t document, int tokens, int context, int stride);

}  // namespace protean
