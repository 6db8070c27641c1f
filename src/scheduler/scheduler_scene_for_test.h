#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

// Small requests and schedulers that the tests of this folder share.

namespace protean {

inline SchedulerConfig config_of(std::int64_t blocks) {
  return {.kv_blocks = blocks,
          .block_tokens = 4,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 8,
          .max_model_len = 64};
}

// Steps take whole prompts.
inline SchedulerConfig roomy(std::int64_t blocks) {
  SchedulerConfig config = config_of(blocks);
  config.max_num_batched_tokens = 64;
  return config;
}

inline Request request(std::uint64_t id, std::vector<TokenId> prompt, int max_tokens) {
  Request made;
  made.id = RequestId{id};
  made.prompt = std::move(prompt);
  made.max_tokens = max_tokens;
  return made;
}

inline std::vector<TokenId> counting(int count, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<std::uint64_t> who(const StepPlan& plan) {
  std::vector<std::uint64_t> ids;
  for (const SequenceSlice& slice : plan.slices) {
    ids.push_back(slice.request.value);
  }
  return ids;
}

// Completes a step in which every sequence draws `token`. The logprob of a score is minus its
// token; a pooled row is its slice's first position.
inline StepOutcome complete(Scheduler& scheduler, const StepPlan& plan, TokenId token = 99) {
  StepResult result{.id = plan.id,
                    .sampled = std::vector<TokenId>(plan.samples.size(), token),
                    .logprobs = std::vector<TokenLogprobs>(plan.samples.size())};
  for (const ScoreSpec& score : plan.scores) {
    result.scored.push_back({.logprob = -static_cast<float>(score.token)});
  }
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.pooling != Pooling::kNone) {
      result.pooled.push_back({static_cast<double>(slice.first_position)});
    }
  }
  return scheduler.complete(std::move(result));
}

}  // namespace protean
