#pragma once

#include <cstddef>

namespace protean::jinja {

// What one rendering may spend. A template comes with a model and its input from a client: neither
// may hang or exhaust the server.
struct Limits {
  std::size_t steps = 10'000'000;        // evaluated nodes; large text counts by its length
  std::size_t value_bytes = 512u << 20;  // everything made during one render
  std::size_t output_bytes = 16u << 20;
  int depth = 1000;  // of nested evaluation; bounds the stack
};

}  // namespace protean::jinja
