#include "scheduler/microbatches.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace protean {

int longest_whole(double sequences, int budget, int floor) {
  constexpr double kShareOfSequences = 2;  // of the released code, like the rule
  const auto share = static_cast<int>(kShareOfSequences / std::max(1.0, sequences) * budget);
  return std::max(1, std::min(std::max(share, floor), budget / 2));
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

PromptDeal deal_prompts(std::span<const int> whole, bool cuts, int budget,
                        std::vector<std::int64_t> loads) {
  check(!loads.empty(), "work is dealt to steps");
  PromptDeal deal{.takes = std::vector<bool>(whole.size(), true)};
  const int first = whole.empty() ? 0 : whole.front();
  std::int64_t chunk = budget;
  if (!whole.empty()) {
    chunk = std::accumulate(whole.begin(), whole.end(), std::int64_t{0}) / std::ssize(whole);
  }
  chunk = std::max<std::int64_t>(1, std::min(chunk, budget - loads[0] - first));
  deal.chunk = static_cast<int>(chunk);
  loads[0] += first + (cuts ? chunk : 0);
  if (whole.size() > 1) {
    const std::vector<std::size_t> steps = deal_longest_first(whole.subspan(1), std::move(loads));
    std::transform(steps.begin(), steps.end(), std::next(deal.takes.begin()),
                   [](std::size_t step) { return step == 0; });
  }
  return deal;
}

}  // namespace protean
