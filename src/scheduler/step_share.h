#pragma once

#include <algorithm>
#include <limits>

namespace protean {

// What makes steps of a pipeline take equal times: how long a token takes, and how much longer for
// each position before it that it attends to, in any unit (KunServe's equations 1 and 2). With
// `per_position` 0, steps get equal numbers of tokens.
struct StepBalance {
  double per_token = 1;
  double per_position = 0;

  // The cost of `tokens` tokens after `context` earlier ones.
  double of(int context, int tokens) const {
    const double positions = static_cast<double>(tokens) * (context + 0.5 * (tokens + 1));
    return per_token * tokens + per_position * positions;
  }
};

// The share of the ready work that the step being planned may take, so that as many steps as a
// pipeline has stages take about equal times.
class StepShare {
 public:
  explicit StepShare(const StepBalance& balance) : balance_(balance) {}

  // Begins a step without a share: it may take everything.
  void begin() { left_ = std::numeric_limits<double>::infinity(); }
  // Begins a step that is one of `steps` among which `ready` cost is divided.
  void begin(double ready, int steps) {
    left_ = ready / steps;
    taken_ = false;
  }

  double cost(int context, int tokens) const { return balance_.of(context, tokens); }

  // True if the step may take no more.
  bool used_up() const { return taken_ && left_ <= 0; }

  // Returns how many of `tokens` tokens a step that is not used up may take of a sequence: as many
  // as its share allows, but at least `least`.
  int tokens_within(int context, int tokens, int least) const;

  void take(int context, int tokens) {
    left_ -= balance_.of(context, tokens);
    taken_ = true;
  }

 private:
  const StepBalance balance_;
  double left_ = std::numeric_limits<double>::infinity();
  bool taken_ = false;
};

inline int StepShare::tokens_within(int context, int tokens, int least) const {
  int within = 0;
  int beyond = tokens + 1;  // the least number known to be too many
  while (within + 1 < beyond) {
    const int middle = within + (beyond - within) / 2;
    (balance_.of(context, middle) <= left_ ? within : beyond) = middle;
  }
  return std::min(tokens, std::max(within, least));
}

}  // namespace protean
