#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace protean {

// What makes steps of a pipeline take equal times, in any unit: how long a token takes, and how
// much longer for each position that it attends to (KunServe's equations 1 and 2); how long each
// sequence takes, and each token of its KV, which a step reads once. With the first alone, steps
// get equal numbers of tokens.
struct StepBalance {
  double per_token = 1;
  double per_position = 0;
  double per_sequence = 0;
  double per_kv_token = 0;
  // Tokens below which steps are not divided further (MIN in KunServe's figure 11); 0: there are no
  // more steps than stages.
  int least_tokens = 0;
  // Steps get work by the heuristics of KunServe's released code (microbatches.h) instead of equal
  // shares of it. Prompts of up to least_tokens are then not cut, if two of them fit in a step.
  bool longest_first = false;

  // The cost of `tokens` tokens after `context` earlier ones.
  double of(int context, int tokens) const {
    if (tokens == 0) {
      return 0;
    }
    const double positions = static_cast<double>(tokens) * (context + 0.5 * (tokens + 1));
    return per_sequence + per_kv_token * (context + tokens) + per_token * tokens +
           per_position * positions;
  }
};

// What the step being planned may still take: a number of tokens, and if several steps are in
// flight a share of the ready work, so that they take about equal times. Decodes are planned first;
// the prompts after them share what is left, up to a limit of their own.
class StepBudget {
 public:
  explicit StepBudget(const StepBalance& balance) : balance_(balance) {}

  // Limits the prompts of each step from the next one on.
  void limit_prompts(int tokens) { prompt_limit_ = std::max(1, tokens); }

  // Limits all tokens of each step from the next one on.
  void limit_steps(int tokens) { step_limit_ = std::max(1, tokens); }

  // Begins a step that may take so many tokens, of any share.
  void begin_step(int tokens) {
    left_ = std::min(tokens, step_limit_);
    share_ = std::numeric_limits<double>::infinity();
    cost_taken_ = 0;
  }
  // Divides `work`, the cost of `tokens` tokens, into equal shares, one for each of this step and
  // those after it, and gives the step its own. There is a share for each of `stages`; all are
  // halved again and again while the halves have the least number of tokens (lookahead, KunServe
  // section 4.3). Returns the number of shares.
  std::int64_t divide(double work, std::int64_t tokens, int stages) {
    std::int64_t shares = stages;
    while (balance_.least_tokens > 0 && tokens >= 2 * shares * balance_.least_tokens) {
      shares *= 2;
    }
    share_ = work / static_cast<double>(shares);
    return shares;
  }
  void begin_prompts() { left_ = std::min(left_, prompt_limit_); }

  // Returns how many of `tokens` a step may take, and its prompts.
  int of_steps(int tokens) const { return std::min(tokens, step_limit_); }
  int of_prompts(int tokens) const { return std::min(tokens, prompt_limit_); }
  double cost(int context, int tokens) const { return balance_.of(context, tokens); }

  // Returns how many of a sequence's `pending` tokens the step takes while it has room: as many as
  // its share allows, but at least `least`.
  int tokens_of(int context, int pending, int least) const;
  void take(int context, int tokens) {
    left_ -= tokens;
    share_ -= balance_.of(context, tokens);
    cost_taken_ += balance_.of(context, tokens);
  }

  int left() const { return left_; }
  double cost_taken() const { return cost_taken_; }
  // A step that has nothing yet has room, however small its share is.
  bool has_room() const { return left_ > 0 && (cost_taken_ <= 0 || share_ > 0); }

 private:
  const StepBalance balance_;
  int prompt_limit_ = std::numeric_limits<int>::max();
  int step_limit_ = std::numeric_limits<int>::max();
  int left_ = std::numeric_limits<int>::max();
  double share_ = std::numeric_limits<double>::infinity();  // cost that is left of it
  double cost_taken_ = 0;
};

inline int StepBudget::tokens_of(int context, int pending, int least) const {
  const int tokens = std::min(pending, left_);
  int within = 0;
  int beyond = tokens + 1;  // the least number known to be too many
  while (within + 1 < beyond) {
    const int middle = within + (beyond - within) / 2;
    (balance_.of(context, middle) <= share_ ? within : beyond) = middle;
  }
  return std::min(tokens, std::max(within, least));
}

}  // namespace protean
