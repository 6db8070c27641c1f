#include "server/recent_lengths.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(RecentLengths, AQuantileIsNotExceededByItsShareOfTheAnswers) {
  RecentLengths lengths;
  for (int tokens = 19; tokens >= 1; --tokens) {
    lengths.add(2, tokens);
  }
  EXPECT_EQ(lengths.quantile(0.9), std::nullopt) << "too few";
  lengths.add(2, 1000);
  EXPECT_EQ(lengths.quantile(0.05), 1);
  EXPECT_EQ(lengths.quantile(0.5), 10);
  EXPECT_EQ(lengths.quantile(0.9), 18);
  EXPECT_EQ(lengths.quantile(0.95), 19);
  EXPECT_EQ(lengths.quantile(0.96), 1000);
  EXPECT_EQ(lengths.quantile(1), 1000);
}

TEST(RecentLengths, OldAnswersAreForgotten) {
  RecentLengths lengths;
  for (std::size_t i = 0; i < RecentLengths::kMost + 10; ++i) {
    lengths.add(3, i < 10 ? 7000 : 5);
  }
  EXPECT_EQ(lengths.quantile(1), 5);
  lengths.add(3, 6);
  EXPECT_EQ(lengths.quantile(1), 6);
}

TEST(RecentLengths, MeansAreOfPromptsAndAnswers) {
  RecentLengths lengths;
  EXPECT_FALSE(lengths.means().has_value());
  lengths.add(10, 300);
  lengths.add(20, 101);
  EXPECT_EQ(lengths.means()->prompt, 15);
  EXPECT_EQ(lengths.means()->answer, 200);
}

}  // namespace
}  // namespace protean
