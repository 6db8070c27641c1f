#include "control/outlook.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace protean {
namespace {

constexpr Outlook kLate = {.cost = 20, .most_cost = 40, .late = 40, .serves = true};
constexpr Outlook kInTime = {.cost = 0, .most_cost = 0, .late = 0, .serves = true};

TEST(Outlook, AGroupIsChosenIfItSavesMoreThanALowerPrecision) {
  const Outlook slower = {.cost = 5, .most_cost = 10, .late = 10, .serves = true};
  const std::vector<Outlook> groups = {slower, kInTime};
  EXPECT_EQ(choose_group(kLate, {}, groups), 1U);
  EXPECT_EQ(choose_group(kLate, std::array{slower}, groups), 1U);
  EXPECT_EQ(choose_group(kLate, std::array{kInTime}, groups), 1U) << "a group loses no quality";
  EXPECT_EQ(choose_group(kLate, std::array{kInTime}, std::array{slower}), std::nullopt);
}

TEST(Outlook, NothingChangesIfNoGroupSavesARequestAndAFifth) {
  const Outlook little = {.cost = 17, .most_cost = 17, .late = 17, .serves = true};
  EXPECT_EQ(choose_group(kLate, {}, std::array{little}), std::nullopt);
  const Outlook half_a_request = {.cost = 0.5, .most_cost = 0.5, .late = 0.5, .serves = true};
  EXPECT_EQ(choose_group(half_a_request, {}, std::array{kInTime}), std::nullopt);
}

TEST(Outlook, TheOnlyWayThatHoldsTheLongestSequenceIsChosen) {
  Outlook small = kInTime;
  small.serves = false;
  EXPECT_EQ(choose_group(small, {}, std::array{kLate}), 0U);
  EXPECT_EQ(choose_group(kLate, {}, std::array{small}), std::nullopt);
}

TEST(Outlook, MoreQualityIsWorthNoLateRequest) {
  const Outlook half_late = {.cost = 20, .most_cost = 20, .late = 20};
  EXPECT_TRUE(no_later(kInTime, kInTime));
  EXPECT_TRUE(no_later(kInTime, kLate));
  EXPECT_TRUE(no_later(half_late, kLate));
  EXPECT_FALSE(no_later(kLate, half_late));
  Outlook small = kInTime;
  small.serves = false;
  EXPECT_FALSE(no_later(small, kLate));
}

// A sequence that has to grow by more tokens than KV holds before KV could grow is not served.
TEST(Outlook, KvHoldsTheLongestSequenceUntilItCouldBeLargerAgain) {
  StepCost cost{.fixed_us = 10'000};
  Way way{.speed = {cost, 512}, .serving = {.most_sequences = 8}, .course = {}};
  way.course.to.kv_blocks = 10;  // 160 tokens
  Load load{.decoding = 1, .context_tokens = 150, .largest_tokens = 150, .largest_left_tokens = 50};
  load.arrivals = {.per_s = 0.01, .most_per_s = 0.02, .lasts_s = 60, .prompt_tokens = 16};
  EXPECT_TRUE(outlook_of(way, load, false).serves);
  way.course.seconds_back = 0.2;  // 20 steps
  EXPECT_FALSE(outlook_of(way, load, false).serves);
  load.largest_left_tokens = 5;
  EXPECT_TRUE(outlook_of(way, load, false).serves);
}

TEST(Outlook, AShareOfASumIsTheMeanReplica) {
  const Load busy = {.decoding = 6, .context_tokens = 600, .left_tokens = 10, .largest_tokens = 90};
  const Load idle = {.largest_tokens = 20};
  const Load sum = sum_of(std::array{busy, idle}, {.per_s = 4, .most_per_s = 8});
  const Load mean = share_of(sum, 0.5);
  EXPECT_EQ(mean.decoding, 3);
  EXPECT_EQ(mean.context_tokens, 300);
  EXPECT_EQ(mean.left_tokens, 10);
  EXPECT_EQ(mean.largest_tokens, 90);
  EXPECT_EQ(mean.arrivals.per_s, 2);
  EXPECT_EQ(mean.arrivals.most_per_s, 4);
}

}  // namespace
}  // namespace protean
