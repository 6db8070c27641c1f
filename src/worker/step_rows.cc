#include "worker/step_rows.h"

#include "base/check.h"

namespace protean {

std::span<const BlockId> StepRows::blocks_of(const StepPlan& plan, const SequenceSlice& slice) {
  return std::span(plan.blocks)
      .subspan(static_cast<std::size_t>(slice.block_begin),
               static_cast<std::size_t>(slice.block_count));
}

void StepRows::check_slice(const StepPlan& plan, const SequenceSlice& slice, int next_token) const {
  check(slice.token_begin == next_token && slice.token_count > 0 &&
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

void StepRows::read(std::span<const StepPlan> plans, std::int64_t blocks) {
  tokens_.clear();
  positions_.clear();
  views_made_ = 0;
  homes_.resize(plans.size());
  for (std::size_t home = 0; home < plans.size(); ++home) {
    homes_[home].plan = &plans[home];
    homes_[home].first_row = static_cast<int>(tokens_.size());
    read(plans[home], blocks, homes_[home]);
    homes_[home].rows = static_cast<int>(tokens_.size()) - homes_[home].first_row;
  }
  check(!tokens_.empty() && std::ssize(tokens_) <= limits_.rows,
        "a step has at least one token and no more than the limit");
}

void StepRows::read(const StepPlan& plan, std::int64_t blocks, Home& home) {
  for (const TokenId token : plan.tokens) {
    check(token >= 0 && token < limits_.vocab, "tokens are in the vocabulary");
  }
  for (const BlockId block : plan.blocks) {
    check(block >= 0 && block < blocks, "blocks exist");
  }
  tokens_.insert(tokens_.end(), plan.tokens.begin(), plan.tokens.end());
  home.sampled_rows.assign(plan.samples.size(), -1);
  int tokens = 0;
  std::ptrdiff_t scores = 0;
  for (const SequenceSlice& slice : plan.slices) {
    check_slice(plan, slice, tokens);
    check(slice.score_count == 0 || slice.score_begin == scores,
          "the scores of a plan are in the order of its slices");
    scores += slice.score_count;
    for (int i = 0; i < slice.token_count; ++i) {
      positions_.push_back(slice.first_position + i);
    }
    tokens += slice.token_count;
    if (slice.sample >= 0) {
      int& row = home.sampled_rows[static_cast<std::size_t>(slice.sample)];
      check(row < 0, "a sample belongs to one slice");
      row = home.first_row + tokens - 1;
    }
  }
  check(tokens == std::ssize(plan.tokens), "every token belongs to a slice");
  check(scores == std::ssize(plan.scores), "every score belongs to a slice");
  for (const int row : home.sampled_rows) {
    check(row >= 0, "a sample belongs to a slice");
  }
}

ForwardBatch StepRows::batch(int first_home, int homes, const KvPlaces* places) {
  const int last_home = first_home + homes - 1;
  const int end_row = first_row(last_home) + rows(last_home);
  const auto first = static_cast<std::size_t>(first_row(first_home));
  const auto end = static_cast<std::size_t>(end_row);
  return {.tokens = std::span(tokens_).subspan(first, end - first),
          .positions = std::span(positions_).subspan(first, end - first),
          .slices = view(first_home, homes, places).slices,
          .first_row = static_cast<std::int64_t>(first)};
}

const StepRows::View& StepRows::view(int first_home, int homes, const KvPlaces* places) {
  for (std::size_t i = 0; i < views_made_; ++i) {
    const View& view = views_[i];
    if (view.first_home == first_home && view.homes == homes && view.places == places) {
      return view;
    }
  }
  if (views_made_ == views_.size()) {
    views_.emplace_back();
  }
  View& view = views_[views_made_++];
  view.first_home = first_home;
  view.homes = homes;
  view.places = places;
  fill(view);
  return view;
}

// Translates the block tables first, because slices refer to them.
void StepRows::fill(View& view) const {
  view.blocks.clear();
  view.slices.clear();
  const int end = view.first_home + view.homes;
  if (view.places != nullptr) {
    for (int home = view.first_home; home < end; ++home) {
      const StepPlan& plan = *homes_[static_cast<std::size_t>(home)].plan;
      for (const SequenceSlice& slice : plan.slices) {
        for (const BlockId block : blocks_of(plan, slice)) {
          view.blocks.push_back(view.places->place(home, block));
        }
      }
    }
  }
  int row = 0;
  std::size_t translated = 0;
  for (int home = view.first_home; home < end; ++home) {
    const StepPlan& plan = *homes_[static_cast<std::size_t>(home)].plan;
    for (const SequenceSlice& slice : plan.slices) {
      const auto count = static_cast<std::size_t>(slice.block_count);
      view.slices.push_back({.first_row = row,
                             .rows = slice.token_count,
                             .first_position = slice.first_position,
                             .blocks = view.places == nullptr
                                           ? blocks_of(plan, slice)
                                           : std::span(view.blocks).subspan(translated, count)});
      row += slice.token_count;
      translated += count;
    }
  }
}

}  // namespace protean
