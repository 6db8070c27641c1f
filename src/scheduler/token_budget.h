#pragma once

#include <algorithm>
#include <limits>

namespace protean {

// The tokens that the step being planned may still take. Decodes are planned first; the prompts
// after them share what is left, up to a limit of their own.
class TokenBudget {
 public:
  // Limits the prompts of each step from the next one on.
  void limit_prompts(int tokens) { prompt_limit_ = std::max(1, tokens); }

  void begin_step(int tokens) { left_ = tokens; }
  void begin_prompts() { left_ = std::min(left_, prompt_limit_); }
  // Returns how many of `tokens` a step's prompts may take.
  int of_prompts(int tokens) const { return std::min(tokens, prompt_limit_); }
  void take(int tokens) { left_ -= tokens; }

  int left() const { return left_; }
  // True if the latest step took as many tokens as it might.
  bool used_up() const { return left_ <= 0; }

 private:
  int prompt_limit_ = std::numeric_limits<int>::max();
  int left_ = std::numeric_limits<int>::max();
};

}  // namespace protean
