#pragma once

#include <cstddef>

namespace protean::jinja {

// Bounds of one rendering, so that neither a model's template nor a client's input can hang the
// server or use up its memory.
struct Limits {
  std::size_t steps = 10'000'000;        // evaluated nodes; long text counts as several
  std::size_t value_bytes = 512u << 20;  // all values made during one rendering
  std::size_t output_bytes = 16u << 20;
  int depth = 1000;  // levels of nested evaluation; bounds the stack
};

}  // namespace protean::jinja
