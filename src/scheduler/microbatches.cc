#include "scheduler/microbatches.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace protean {

PromptCut prompt_cut(std::span<const int> prompts, double sequences, int budget, int floor) {
  constexpr double kShareOfSequences = 2;
  constexpr double kLargestShare = 0.5;
  const double share = std::min(
      kLargestShare,
      std::max(kShareOfSequences / std::max(1.0, sequences), static_cast<double>(floor) / budget));
  PromptCut cut{.longest_whole = std::max(1, static_cast<int>(share * budget)), .chunk = budget};
  std::int64_t whole = 0;
  std::int64_t tokens = 0;
  for (const int prompt : prompts) {
    whole += prompt <= cut.longest_whole ? 1 : 0;
    tokens += prompt <= cut.longest_whole ? prompt : 0;
  }
  if (whole > 0) {
    cut.chunk = static_cast<int>(std::max<std::int64_t>(1, tokens / whole));
  }
  return cut;
}

std::vector<std::size_t> deal_longest_first(std::span<const int> tokens,
                                            std::vector<std::int64_t> loads) {
  check(!loads.empty(), "work is dealt to steps");
  std::vector<std::size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tokens[a] > tokens[b]; });
  std::vector<std::size_t> steps(tokens.size());
  for (const std::size_t piece : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    steps[piece] = static_cast<std::size_t>(least - loads.begin());
    *least += tokens[piece];
  }
  return steps;
}

}  // namespace protean
