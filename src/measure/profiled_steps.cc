#include "measure/profiled_steps.h"

#include <fmt/format.h>

#include <utility>

namespace protean {
namespace {

StepSizes decode_with_chunk(int sequences, int context, const SliceSizes& chunk) {
  StepSizes sizes = decode_sizes(sequences, context);
  sizes.slices.push_back(chunk);
  return sizes;
}

}  // namespace

std::vector<NamedStep> fitted_steps(int longest) {
  std::vector<NamedStep> steps;
  const auto add = [&](std::string name, StepSizes sizes) {
    steps.push_back({std::move(name), std::move(sizes), true});
  };
  for (const int sequences : {1, 2, 4, 6, 8, 12, 16, 20, 32, 40, 64}) {
    add("decode", decode_sizes(sequences, longest / 32));
  }
  for (const int sequences : {1, 4, 8, 32}) {
    add("decode", decode_sizes(sequences, longest / 2));
  }
  add("decode", decode_sizes(16, longest - 1));
  for (int tokens = longest; tokens >= 8; tokens /= 2) {
    add("prompt", prefill_sizes(tokens));
  }
  // Tiles of rows that are incomplete, as most prompts leave them.
  for (const int of_64 : {2, 5, 9, 18, 30}) {
    add("prompt", prefill_sizes(longest * of_64 / 64 + 4));
  }
  for (const int tokens : {longest / 64, longest / 16, longest / 4}) {
    add("chunk", inner_chunk(tokens, longest - longest / 4));
  }
  add("chunks", inner_chunks(4, 8));
  add("chunks", inner_chunks(8, longest / 64));
  add("mixed", decode_with_chunk(16, longest / 2, {.context = 0, .tokens = longest / 16}));
  return steps;
}

std::vector<NamedStep> held_out_steps(int longest) {
  const auto at = [longest](int of_64) { return longest * of_64 / 64; };
  return {{"decode 3", decode_sizes(3, at(2))},
          {"decode 10", decode_sizes(10, at(16))},
          {"decode 14", decode_sizes(14, at(2))},
          {"decode 24", decode_sizes(24, at(3))},
          {"decode 48", decode_sizes(48, at(24))},
          {fmt::format("prompt {}", at(6)), prefill_sizes(at(6))},
          {fmt::format("prompt {}", at(12)), prefill_sizes(at(12))},
          {fmt::format("prompt {}", at(24)), prefill_sizes(at(24))},
          {fmt::format("prompt {}", at(48)), prefill_sizes(at(48))},
          {fmt::format("{} after {}", at(3), at(16)), inner_chunk(at(3), at(16))},
          {fmt::format("{} after {}", at(8), at(32)), inner_chunk(at(8), at(32))},
          {fmt::format("decode 8 + {}", at(6)),
           decode_with_chunk(8, at(16), {.context = 0, .tokens = at(6)})},
          {fmt::format("decode 24 + {} after {}", at(4), at(32)),
           decode_with_chunk(24, at(4), {.context = at(32), .tokens = at(4)})}};
}

}  // namespace protean
