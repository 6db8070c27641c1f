#include "control/fair_turns.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace protean {
namespace {

constexpr TimeNs kStepNs = 10 * kNsPerMs;

// Devices in virtual time.
struct FairTurnsTest : testing::Test {
  // Lets a device compute one step as soon as it may.
  void step(TurnId id, TimeNs took_ns = kStepNs) {
    now_ns = turns.opens_ns(id, now_ns);
    turns.begin(id, now_ns);
    now_ns += took_ns;
    turns.end(id, now_ns);
  }
  // Returns how long a device has to wait from now on.
  TimeNs wait_ns(TurnId id) const { return turns.opens_ns(id, now_ns) - now_ns; }

  FairTurns turns;
  TimeNs now_ns = 5 * kNsPerS;
};

TEST_F(FairTurnsTest, AModelComputesForItsShareOfTheTimeInWhichOneOfHigherPriorityHasRequests) {
  const TurnId high = turns.add({1, 0}, 4);
  const TurnId low = turns.add({1, 2}, 1);
  turns.want(high);
  turns.want(low);
  const TimeNs began_ns = now_ns;
  for (int i = 0; i < 25; ++i) {
    step(low, i % 2 == 0 ? kStepNs : 3 * kStepNs);
    EXPECT_EQ(wait_ns(high), 0) << "no model waits for one of lower priority";
  }
  now_ns = turns.opens_ns(low, now_ns);
  EXPECT_EQ(now_ns - began_ns, 4 * turns.computed_ns(low));
}

TEST_F(FairTurnsTest, NoModelWaitsForAnEqualOneOrOneOnOtherCpusOrOneWithoutRequests) {
  const TurnId own = turns.add({1, 0}, 2);
  const TurnId equal = turns.add({0, 1}, 2);
  const TurnId elsewhere = turns.add({3, 2}, 9);
  const TurnId idle = turns.add({}, 9);
  for (const TurnId busy : {own, equal, elsewhere}) {
    turns.want(busy);
  }
  for (int i = 0; i < 3; ++i) {
    step(own);
    EXPECT_EQ(wait_ns(own), 0);
  }
  turns.want(idle);
  EXPECT_GT(wait_ns(own), 0) << "a device without a list of CPUs may use all";
}

TEST_F(FairTurnsTest, AWaitEndsWhenTheRequestsDoAndNeverDependsOnAStepOfAnother) {
  const TurnId high = turns.add({0}, 3);
  const TurnId low = turns.add({0}, 1);
  turns.want(high);
  turns.begin(high, now_ns);  // hangs
  step(low);
  EXPECT_EQ(wait_ns(low), 2 * kStepNs);
  now_ns += kStepNs;
  EXPECT_EQ(wait_ns(low), kStepNs);
  turns.rest(high);
  EXPECT_EQ(wait_ns(low), 0);
  turns.want(high);
  EXPECT_EQ(wait_ns(low), kStepNs);
  turns.remove(high);
  EXPECT_EQ(wait_ns(low), 0);
}

TEST_F(FairTurnsTest, TimeThatAModelDidNotUseIsNotSavedNorIsAnOldStepHeldAgainstIt) {
  const TurnId high = turns.add({0}, 4);
  const TurnId low = turns.add({0}, 1);
  step(low);
  now_ns += kNsPerS;
  turns.want(high);
  EXPECT_EQ(wait_ns(low), 0);
  step(low);
  EXPECT_EQ(wait_ns(low), 3 * kStepNs);
}

TEST_F(FairTurnsTest, AStepInWhichTheProcessStoodStillCostsNoLongWait) {
  const TurnId high = turns.add({0}, 16);
  const TurnId low = turns.add({0}, 1);
  turns.want(high);
  step(low, 600 * kNsPerS);
  EXPECT_EQ(wait_ns(low), FairTurns::kLongestWaitNs);
}

// Two devices compute each step together, and one of them begins it later.
TEST_F(FairTurnsTest, DevicesOfAGroupDriftNoFurtherApart) {
  const TurnId high = turns.add({0, 1}, 4);
  const TurnId one = turns.add({0}, 1);
  const TurnId two = turns.add({1}, 1);
  turns.want(high);
  const TimeNs began_ns = now_ns;
  TimeNs late_ns = kNsPerMs;
  for (int i = 0; i < 50; ++i) {
    const TimeNs first_ns = turns.opens_ns(one, now_ns);
    const TimeNs second_ns = std::max(turns.opens_ns(two, now_ns), i == 0 ? now_ns + late_ns : 0);
    turns.begin(one, first_ns);
    turns.begin(two, second_ns);
    late_ns = second_ns - first_ns;
    EXPECT_EQ(late_ns, kNsPerMs);
    now_ns = second_ns + kStepNs;
    turns.end(one, now_ns, late_ns);
    turns.end(two, now_ns);
  }
  EXPECT_LE(now_ns - began_ns, 50 * 4 * kStepNs);
  EXPECT_EQ(turns.computed_ns(one), 50 * kStepNs);
}

TEST_F(FairTurnsTest, TheHighestPriorityCountsAsItIsNow) {
  const TurnId low = turns.add({0}, 2);
  const TurnId high = turns.add({0}, 4);
  turns.want(high);
  step(low);
  EXPECT_EQ(wait_ns(low), kStepNs);
  const TurnId highest = turns.add({0}, 8);
  turns.want(highest);
  EXPECT_EQ(wait_ns(low), 3 * kStepNs);
  turns.set_priority(highest, 2);
  EXPECT_EQ(wait_ns(low), kStepNs);
  turns.set_priority(low, 4);
  EXPECT_EQ(wait_ns(low), 0);
}

TEST_F(FairTurnsTest, CountsTheTimeOfStepsWhenTheyEndWithoutTheirWaits) {
  const TurnId one = turns.add({}, 1);
  turns.want(one);
  step(one);
  now_ns += kNsPerS;
  EXPECT_EQ(turns.computed_ns(one), kStepNs);
  turns.begin(one, now_ns);
  now_ns += kStepNs;
  EXPECT_EQ(turns.computed_ns(one), kStepNs) << "it may wait for others of its group, or hang";
  turns.end(one, now_ns, kStepNs / 2);
  EXPECT_EQ(turns.computed_ns(one), kStepNs * 3 / 2);
}

}  // namespace
}  // namespace protean
