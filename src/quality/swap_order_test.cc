#include "quality/swap_order.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace protean {
namespace {

std::vector<int> targets_of(const std::vector<RankedTarget>& ranked) {
  std::vector<int> targets;
  for (const RankedTarget& target : ranked) {
    targets.push_back(target.target);
  }
  return targets;
}

TEST(SwapOrder, TakesTheHighestScoreGivenThoseTakenBefore) {
  const std::vector<TargetSensitivity> targets(3);
  // Target 1 alone costs least. Once it is lowered, 0 costs more than 2, though alone it costs
  // less.
  const auto ranked = rank_by_importance(targets, {}, [](const std::vector<bool>& lowered) {
    return lowered[1] ? std::vector{0.2, 0.0, 0.6} : std::vector{0.8, 0.9, 0.7};
  });
  EXPECT_EQ(targets_of(ranked), (std::vector{1, 2, 0}));
  EXPECT_DOUBLE_EQ(ranked[0].score, 0.25 + 0.25 + 0.5 * 0.9);
  EXPECT_DOUBLE_EQ(ranked[2].score, 0.25 + 0.25 + 0.5 * 0.2);
}

TEST(SwapOrder, WeighsThreeSensitivities) {
  const std::vector<TargetSensitivity> targets = {{0.9, 0.1}, {0.1, 0.9}, {0.2, 0.2}};
  const auto degradation = [](const std::vector<bool>&) { return std::vector{0.1, 0.2, 0.9}; };
  EXPECT_EQ(targets_of(rank_by_importance(targets, {1, 0, 0}, degradation)),
            (std::vector{0, 2, 1}));
  EXPECT_EQ(targets_of(rank_by_importance(targets, {0, 1, 0}, degradation)),
            (std::vector{1, 2, 0}));
  EXPECT_EQ(targets_of(rank_by_importance(targets, {0, 0, 1}, degradation)),
            (std::vector{2, 1, 0}));
}

TEST(SwapOrder, TakesTheFirstOfEquals) {
  const std::vector<TargetSensitivity> targets(4);
  const auto ranked =
      rank_by_importance(targets, {}, [](const auto&) { return std::vector<double>(4, 1.0); });
  EXPECT_EQ(targets_of(ranked), front_to_back(4));
}

TEST(SwapOrder, FixedOrdersHoldEveryTargetOnce) {
  EXPECT_EQ(front_to_back(3), (std::vector{0, 1, 2}));
  EXPECT_EQ(back_to_front(3), (std::vector{2, 1, 0}));
  const std::vector<int> random = random_order(20, 1);
  EXPECT_EQ(random, random_order(20, 1));
  EXPECT_NE(random, random_order(20, 2));
  EXPECT_TRUE(std::is_permutation(random.begin(), random.end(), front_to_back(20).begin()));
  EXPECT_EQ(lowered_by(std::vector{2, 0, 1}, 2), (std::vector{true, false, true}));
  EXPECT_EQ(table_levels(16), (std::vector{1, 2, 4, 8, 16}));
  EXPECT_EQ(table_levels(5), (std::vector{1, 2, 4, 5}));
  EXPECT_EQ(table_levels(1), (std::vector{1}));
}

}  // namespace
}  // namespace protean
