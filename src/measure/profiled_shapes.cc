#include "measure/profiled_shapes.h"

#include <fmt/format.h>

#include <utility>

namespace protean {
namespace {

StepShape decode_with_chunk(int sequences, int context, const SliceShape& chunk) {
  StepShape shape = decode_shape(sequences, context);
  shape.slices.push_back(chunk);
  return shape;
}

}  // namespace

std::vector<NamedShape> fitted_shapes(int longest) {
  std::vector<NamedShape> shapes;
  const auto add = [&](std::string name, StepShape shape) {
    shapes.push_back({std::move(name), std::move(shape), true});
  };
  for (const int sequences : {1, 2, 4, 6, 8, 12, 16, 20, 32, 40, 64}) {
    add("decode", decode_shape(sequences, longest / 32));
  }
  for (const int sequences : {1, 4, 8, 32}) {
    add("decode", decode_shape(sequences, longest / 2));
  }
  add("decode", decode_shape(16, longest - 1));
  for (int tokens = longest; tokens >= 8; tokens /= 2) {
    add("prompt", prefill_shape(tokens));
  }
  // Tiles of rows that are incomplete, as most prompts leave them.
  for (const int of_64 : {2, 5, 9, 18, 30}) {
    add("prompt", prefill_shape(longest * of_64 / 64 + 4));
  }
  for (const int tokens : {longest / 64, longest / 16, longest / 4}) {
    add("chunk", inner_chunk(tokens, longest - longest / 4));
  }
  add("chunks", inner_chunks(4, 8));
  add("chunks", inner_chunks(8, longest / 64));
  add("mixed", decode_with_chunk(16, longest / 2, {.context = 0, .tokens = longest / 16}));
  return shapes;
}

std::vector<NamedShape> held_out_shapes(int longest) {
  const auto at = [longest](int of_64) { return longest * of_64 / 64; };
  return {{"decode 3", decode_shape(3, at(2))},
          {"decode 10", decode_shape(10, at(16))},
          {"decode 14", decode_shape(14, at(2))},
          {"decode 24", decode_shape(24, at(3))},
          {"decode 48", decode_shape(48, at(24))},
          {fmt::format("prompt {}", at(6)), prefill_shape(at(6))},
          {fmt::format("prompt {}", at(12)), prefill_shape(at(12))},
          {fmt::format("prompt {}", at(24)), prefill_shape(at(24))},
          {fmt::format("prompt {}", at(48)), prefill_shape(at(48))},
          {fmt::format("{} after {}", at(3), at(16)), inner_chunk(at(3), at(16))},
          {fmt::format("{} after {}", at(8), at(32)), inner_chunk(at(8), at(32))},
          {fmt::format("decode 8 + {}", at(6)),
           decode_with_chunk(8, at(16), {.context = 0, .tokens = at(6)})},
          {fmt::format("decode 24 + {} after {}", at(4), at(32)),
           decode_with_chunk(24, at(4), {.context = at(32), .tokens = at(4)})}};
}

}  // namespace protean
