#include "quant/pruning.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace protean {
namespace {

TEST(Pruning, TwoOfFourGoByTheSizeOfTheirInputs) {
  std::vector<float> weights = {1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6};  // 2 rows of 6
  prune_two_of_four(weights, 6, std::vector<float>{10, 1, 1, 1, 1, 1});
  EXPECT_EQ(weights, (std::vector<float>{1, 0, 0, 4, 5, 6, -1, 0, 0, -4, -5, -6}));
}

TEST(Pruning, NoFourKeepsMoreThanTwo) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int kInputs = 50;
  std::vector<float> weights(7 * kInputs), sizes(kInputs);
  for (float& weight : weights) {
    weight = normal(random);
  }
  for (float& size : sizes) {
    size = std::abs(normal(random));
  }
  const std::vector<float> before = weights;
  prune_two_of_four(weights, kInputs, sizes);
  for (int row = 0; row < 7; ++row) {
    for (int first = 0; first < kInputs; first += 4) {
      int kept = 0;
      for (int i = first; i < std::min(first + 4, kInputs); ++i) {
        const auto at = static_cast<std::size_t>(row * kInputs + i);
        kept += weights[at] != 0 ? 1 : 0;
        EXPECT_TRUE(weights[at] == 0 || weights[at] == before[at]);
      }
      EXPECT_EQ(kept, 2);
    }
  }
}

// The importance of a run is the error that removing it makes, computed from the rows themselves.
TEST(Pruning, ImportanceIsTheErrorOfTheOutputs) {
  constexpr int kInputs = 12, kRun = 4, kOutputs = 5, kRows = 40;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kOutputs * kInputs), x(kRows * kInputs);
  for (auto* values : {&weights, &x}) {
    for (float& value : *values) {
      value = std::round(normal(random) * 16) / 16;  // exact in bf16
    }
  }
  cpu::Team team(1);
  InputStatistics statistics(kInputs);
  statistics.add(team, x, cpu::Element::kBf16);
  const std::vector<double> importance = run_importance(weights, statistics, kRun);
  ASSERT_EQ(importance.size(), 3U);
  for (int run = 0; run < 3; ++run) {
    double error = 0;
    for (int row = 0; row < kRows; ++row) {
      for (int output = 0; output < kOutputs; ++output) {
        double lost = 0;
        for (int i = run * kRun; i < (run + 1) * kRun; ++i) {
          lost += double{x[row * kInputs + i]} * weights[output * kInputs + i];
        }
        error += lost * lost;
      }
    }
    EXPECT_NEAR(importance[static_cast<std::size_t>(run)], error, 1e-3 * error);
  }
  const std::vector<float> sizes = input_sizes(statistics);
  double first = 0;
  for (int row = 0; row < kRows; ++row) {
    first += double{x[row * kInputs]} * x[row * kInputs];
  }
  EXPECT_NEAR(sizes[0], std::sqrt(first), 1e-3);
}

TEST(Pruning, TheLargestAreInAscendingOrder) {
  EXPECT_EQ(largest(std::vector<double>{3, 9, 1, 9, 5}, 3), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(largest(std::vector<double>{2, 2, 2}, 2), (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace protean
