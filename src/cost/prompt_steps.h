#pragma once

#include <algorithm>
#include <cmath>

namespace protean {

// Returns in how many steps a pipeline computes so many tokens of prompts: at least one for each of
// its stages, so that all stages compute at the same time, unless a step had less than a block of
// KV then; and as many as it takes if a step has at most `most_tokens`.
inline double prompt_steps(double tokens, double stages, double most_tokens) {
  constexpr double kBlockTokens = 16;
  return std::max(
      {1.0, std::min(stages, std::ceil(tokens / kBlockTokens)), std::ceil(tokens / most_tokens)});
}

}  // namespace protean
