#include "quality/swap_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"

namespace protean {

std::vector<RankedUnit> rank_by_importance(std::span<const UnitSensitivity> units,
                                           const ImportanceWeights& weights,
                                           const DegradationOf& degradation) {
  std::vector<bool> lowered(units.size());
  std::vector<RankedUnit> ranked;
  while (ranked.size() < units.size()) {
    const std::vector<double> similar = degradation(lowered);
    check(similar.size() == units.size(), "every unit has a degradation");
    RankedUnit best{.unit = -1};
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (lowered[unit]) {
        continue;
      }
      const double score = weights.transformation * units[unit].transformation +
                           weights.replacement * units[unit].replacement +
                           weights.degradation * similar[unit];
      if (best.unit < 0 || score > best.score) {
        best = {static_cast<int>(unit), score};
      }
    }
    lowered[static_cast<std::size_t>(best.unit)] = true;
    ranked.push_back(best);
  }
  return ranked;
}

std::vector<int> front_to_back(int units) {
  std::vector<int> order(static_cast<std::size_t>(units));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int> back_to_front(int units) {
  std::vector<int> order = front_to_back(units);
  std::reverse(order.begin(), order.end());
  return order;
}

// Not std::shuffle, whose result each library may choose.
std::vector<int> random_order(int units, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> order = front_to_back(units);
  for (std::size_t last = order.size(); last > 1; --last) {
    std::swap(order[last - 1], order[random() % last]);
  }
  return order;
}

std::vector<bool> lowered_by(std::span<const int> order, int count) {
  std::vector<bool> lowered(order.size());
  for (const int unit : order.first(static_cast<std::size_t>(count))) {
    lowered[static_cast<std::size_t>(unit)] = true;
  }
  return lowered;
}

std::vector<int> table_levels(int units) {
  std::vector<int> levels;
  for (int level = 1; level < units; level *= 2) {
    levels.push_back(level);
  }
  levels.push_back(units);
  return levels;
}

}  // namespace protean
