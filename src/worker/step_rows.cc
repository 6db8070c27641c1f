#include "worker/step_rows.h"

#include "base/check.h"

namespace protean {

StepRows::StepRows(const Limits& limits) : limits_(limits) {
  positions_.reserve(static_cast<std::size_t>(limits.rows));
}

void StepRows::check_slice(const StepPlan& plan, const SequenceSlice& slice) const {
  check(slice.token_begin == std::ssize(positions_) && slice.token_count > 0 &&
            slice.token_count <= std::ssize(plan.tokens) - slice.token_begin,
        "the slices of a plan cover its tokens in order");
  const std::int64_t end = std::int64_t{slice.first_position} + slice.token_count;
  check(slice.first_position >= 0 && end <= limits_.positions, "positions are within the limit");
  check(slice.block_begin >= 0 && slice.block_count > 0 &&
            slice.block_count <= std::ssize(plan.blocks) - slice.block_begin,
        "a slice's block table is inside its plan");
  check(std::int64_t{slice.block_count} * limits_.block_tokens >= end,
        "a slice's blocks hold all its tokens");
  check(slice.sample >= -1 && slice.sample < std::ssize(plan.samples), "a slice's sample exists");
  check(slice.score_begin >= 0 && slice.score_count >= 0 &&
            slice.score_count <= std::ssize(plan.scores) - slice.score_begin,
        "a slice's scores are inside its plan");
  for (int i = 0; i < slice.score_count; ++i) {
    const ScoreSpec& score =
        plan.scores[static_cast<std::size_t>(slice.score_begin) + static_cast<std::size_t>(i)];
    check(score.after >= slice.token_begin && score.after < slice.token_begin + slice.token_count,
          "a score is of a token after one of its slice");
    check(score.token >= 0 && score.token < limits_.vocab, "scored tokens are in the vocabulary");
  }
}

void StepRows::read(const StepPlan& plan, std::int64_t blocks) {
  check(!plan.tokens.empty() && std::ssize(plan.tokens) <= limits_.rows,
        "a plan has at least one token and no more than the limit");
  for (const TokenId token : plan.tokens) {
    check(token >= 0 && token < limits_.vocab, "tokens are in the vocabulary");
  }
  for (const BlockId block : plan.blocks) {
    check(block >= 0 && block < blocks, "blocks exist");
  }
  tokens_ = plan.tokens;
  positions_.clear();
  slices_.clear();
  sampled_rows_.assign(plan.samples.size(), -1);
  std::ptrdiff_t scores = 0;
  for (const SequenceSlice& slice : plan.slices) {
    check_slice(plan, slice);
    check(slice.score_count == 0 || slice.score_begin == scores,
          "the scores of a plan are in the order of its slices");
    scores += slice.score_count;
    slices_.push_back({.first_row = slice.token_begin,
                       .rows = slice.token_count,
                       .first_position = slice.first_position,
                       .blocks = std::span(plan.blocks)
                                     .subspan(static_cast<std::size_t>(slice.block_begin),
                                              static_cast<std::size_t>(slice.block_count))});
    for (int i = 0; i < slice.token_count; ++i) {
      positions_.push_back(slice.first_position + i);
    }
    if (slice.sample >= 0) {
      int& row = sampled_rows_[static_cast<std::size_t>(slice.sample)];
      check(row < 0, "a sample belongs to one slice");
      row = slice.token_begin + slice.token_count - 1;
    }
  }
  check(positions_.size() == plan.tokens.size(), "every token belongs to a slice");
  check(scores == std::ssize(plan.scores), "every score belongs to a slice");
  for (const int row : sampled_rows_) {
    check(row >= 0, "a sample belongs to a slice");
  }
}

}  // namespace protean
