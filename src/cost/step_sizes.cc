#include "cost/step_sizes.h"

#include <algorithm>

#include "base/units.h"

namespace protean {
namespace {

int blocks_of(const SliceSizes& slice, int block_tokens) {
  return ceil_div(slice.context + slice.tokens, block_tokens);
}

std::vector<SliceSizes> alike(int sequences, const SliceSizes& slice) {
  return std::vector<SliceSizes>(static_cast<std::size_t>(sequences), slice);
}

}  // namespace

int StepSizes::tokens() const {
  int sum = 0;
  for (const SliceSizes& slice : slices) {
    sum += slice.tokens;
  }
  return sum;
}

int StepSizes::longest() const {
  int longest = 0;
  for (const SliceSizes& slice : slices) {
    longest = std::max(longest, slice.context + slice.tokens);
  }
  return longest;
}

int StepSizes::blocks(int block_tokens) const {
  int blocks = 0;
  for (const SliceSizes& slice : slices) {
    blocks += blocks_of(slice, block_tokens);
  }
  return blocks;
}

StepSizes prefill_sizes(int tokens, int context) {
  return {.slices = {{.context = context, .tokens = tokens}}};
}

StepSizes decode_sizes(int sequences, int context) {
  return {.slices = alike(sequences, {.context = context, .tokens = 1})};
}

StepSizes inner_chunk(int tokens, int context) {
  return {.slices = {{.context = context, .tokens = tokens}}, .sampled = false};
}

StepSizes inner_chunks(int sequences, int tokens) {
  return {.slices = alike(sequences, {.context = 0, .tokens = tokens}), .sampled = false};
}

StepPlan plan_of(const StepSizes& sizes, int vocab, int block_tokens, unsigned seed) {
  StepPlan plan;
  std::uint32_t random = seed;
  for (const SliceSizes& slice : sizes.slices) {
    SequenceSlice placed{.request = RequestId{plan.slices.size() + 1},
                         .first_position = slice.context,
                         .token_begin = static_cast<int>(plan.tokens.size()),
                         .token_count = slice.tokens,
                         .block_begin = static_cast<int>(plan.blocks.size()),
                         .block_count = blocks_of(slice, block_tokens)};
    for (int i = 0; i < slice.tokens; ++i) {
      random = random * 1664525U + 1013904223U;
      plan.tokens.push_back(
          static_cast<TokenId>((random >> 8) % static_cast<std::uint32_t>(vocab)));
    }
    for (int i = 0; i < placed.block_count; ++i) {
      plan.blocks.push_back(static_cast<BlockId>(plan.blocks.size()));
    }
    if (sizes.sampled) {
      placed.sample = static_cast<int>(plan.samples.size());
      plan.samples.push_back(
          {.params = {.temperature = 0}, .position = slice.context + slice.tokens});
    }
    plan.slices.push_back(placed);
  }
  return plan;
}

}  // namespace protean
