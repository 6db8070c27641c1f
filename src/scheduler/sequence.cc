#include "scheduler/sequence.h"

#include <algorithm>

namespace protean {
namespace {

bool needs_history(const Request& asks) {
  return asks.constraint != nullptr || asks.sampling.penalises() ||
         (asks.rules != nullptr && !asks.rules->bad_words.empty());
}

void append_sample(StepPlan& plan, const Sequence& sequence) {
  const Request& asks = sequence.asks;
  const int position = static_cast<int>(sequence.tokens.size());
  SampleSpec& sample = plan.samples.emplace_back();
  sample.params = asks.sampling;
  sample.position = position;
  sample.rules = asks.rules;
  sample.constraint = asks.constraint;
  if (needs_history(asks)) {
    sample.history_begin = static_cast<int>(plan.history.size());
    sample.history_count = position;
    sample.prompt_count = sequence.prompt_tokens;
    plan.history.insert(plan.history.end(), sequence.tokens.begin(), sequence.tokens.end());
  }
  if (sequence.usage.output_tokens < asks.min_tokens) {
    sample.banned = asks.stop_ids;
  }
  if (asks.logprobs.answer) {
    sample.top_logprobs = asks.logprobs.top;
  }
}

void append_scores(StepPlan& plan, const Sequence& sequence, SequenceSlice& slice) {
  slice.score_begin = static_cast<int>(plan.scores.size());
  const int last = std::min(slice.first_position + slice.token_count, sequence.prompt_tokens - 1);
  for (int position = sequence.scored; position <= last; ++position) {
    plan.scores.push_back({.after = slice.token_begin + position - 1 - slice.first_position,
                           .token = sequence.tokens[static_cast<std::size_t>(position)],
                           .top_logprobs = sequence.asks.logprobs.top,
                           .whole_row = sequence.asks.logprobs.whole_rows});
  }
  slice.score_count = static_cast<int>(plan.scores.size()) - slice.score_begin;
}

}  // namespace

int reusable_tokens(const Request& asks, int tokens, int unscored_from) {
  if (asks.pooling == Pooling::kMean) {
    return 0;
  }
  return asks.logprobs.prompt ? std::min(tokens, unscored_from) - 1 : tokens - 1;
}

int Sequence::reusable() const {
  const int all = static_cast<int>(tokens.size());
  return reusable_tokens(asks, all, scored < prompt_tokens ? scored : all);
}

void append_slice(StepPlan& plan, const Sequence& sequence, int count, int block_count) {
  const int end = sequence.planned + count;
  const bool at_end = end == static_cast<int>(sequence.tokens.size());
  SequenceSlice slice{.request = sequence.asks.id,
                      .first_position = sequence.planned,
                      .token_begin = static_cast<int>(plan.tokens.size()),
                      .token_count = count,
                      .block_begin = static_cast<int>(plan.blocks.size()),
                      .block_count = block_count};
  if (at_end && !sequence.ends_with_prompt()) {
    slice.sample = static_cast<int>(plan.samples.size());
    append_sample(plan, sequence);
  }
  if (sequence.asks.logprobs.prompt) {
    append_scores(plan, sequence, slice);
  }
  if (at_end || sequence.asks.pooling == Pooling::kMean) {
    slice.pooling = sequence.asks.pooling;
  }
  plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + sequence.planned,
                     sequence.tokens.begin() + end);
  plan.blocks.insert(plan.blocks.end(), sequence.blocks.begin(),
                     sequence.blocks.begin() + block_count);
  plan.slices.push_back(slice);
}

}  // namespace protean
