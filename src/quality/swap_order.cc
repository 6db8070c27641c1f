#include "quality/swap_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"

namespace protean {

std::vector<RankedTarget> rank_by_importance(std::span<const TargetSensitivity> targets,
                                             const ImportanceWeights& weights,
                                             const DegradationOf& degradation) {
  std::vector<bool> lowered(targets.size());
  std::vector<RankedTarget> ranked;
  while (ranked.size() < targets.size()) {
    const std::vector<double> similar = degradation(lowered);
    check(similar.size() == targets.size(), "every target has a degradation");
    RankedTarget best{.target = -1};
    for (std::size_t target = 0; target < targets.size(); ++target) {
      if (lowered[target]) {
        continue;
      }
      const double score = weights.transformation * targets[target].transformation +
                           weights.replacement * targets[target].replacement +
                           weights.degradation * similar[target];
      if (best.target < 0 || score > best.score) {
        best = {static_cast<int>(target), score};
      }
    }
    lowered[static_cast<std::size_t>(best.target)] = true;
    ranked.push_back(best);
  }
  return ranked;
}

std::vector<int> front_to_back(int targets) {
  std::vector<int> order(static_cast<std::size_t>(targets));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int> back_to_front(int targets) {
  std::vector<int> order = front_to_back(targets);
  std::reverse(order.begin(), order.end());
  return order;
}

// Does not use std::shuffle, whose result differs between standard libraries.
std::vector<int> random_order(int targets, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> order = front_to_back(targets);
  for (std::size_t last = order.size(); last > 1; --last) {
    std::swap(order[last - 1], order[random() % last]);
  }
  return order;
}

std::vector<bool> lowered_by(std::span<const int> order, int count) {
  std::vector<bool> lowered(order.size());
  for (const int target : order.first(static_cast<std::size_t>(count))) {
    lowered[static_cast<std::size_t>(target)] = true;
  }
  return lowered;
}

std::vector<int> table_levels(int targets) {
  std::vector<int> levels;
  for (int level = 1; level < targets; level *= 2) {
    levels.push_back(level);
  }
  levels.push_back(targets);
  return levels;
}

}  // namespace protean
