#include "control/replica_demand.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

constexpr TimeNs kAfterNs = 10 * kNsPerS;

KvShortage lacking(std::int64_t blocks) {
  return {.replicas = 2, .lacking_blocks = blocks, .blocks_each = 100};
}

TEST(ReplicaDemand, EachReplicaMoreHoldsItsBlocks) {
  EXPECT_EQ(replicas_needed(lacking(-50)), 2);
  EXPECT_EQ(replicas_needed(lacking(0)), 2);
  EXPECT_EQ(replicas_needed(lacking(1)), 3);
  EXPECT_EQ(replicas_needed(lacking(100)), 3);
  EXPECT_EQ(replicas_needed(lacking(101)), 4);
  EXPECT_EQ(replicas_needed({.replicas = 3, .lacking_blocks = 5, .blocks_each = 0}), 3);
}

TEST(ReplicaDemand, AShortageThatPoliciesMeetInTimeAsksForNothing) {
  ReplicaDemand demand(2, kAfterNs);
  EXPECT_FALSE(demand.next_ns().has_value());
  demand.see(lacking(250), 5);
  EXPECT_EQ(demand.next_ns(), 5 + kAfterNs);
  demand.see(lacking(0), 4 + kAfterNs);
  EXPECT_FALSE(demand.next_ns().has_value());
  demand.see(lacking(250), 5 + kAfterNs);
  EXPECT_EQ(demand.wanted(), 2);
  EXPECT_EQ(demand.next_ns(), 5 + 2 * kAfterNs) << "it begins anew";
}

TEST(ReplicaDemand, TheNumberRisesToTheLeastThatWasNeededForAllTheTime) {
  ReplicaDemand demand(2, kAfterNs);
  demand.see(lacking(250), 0);
  demand.see(lacking(900), 3 * kNsPerS);
  demand.see(lacking(150), 6 * kNsPerS);
  demand.see(lacking(900), kAfterNs);
  EXPECT_EQ(demand.wanted(), 4);
  EXPECT_EQ(demand.next_ns(), 2 * kAfterNs) << "more are needed still";
  demand.see(lacking(900), 2 * kAfterNs);
  EXPECT_EQ(demand.wanted(), 11);
}

TEST(ReplicaDemand, ItFallsOnlyOnceLessWasEnoughForAllTheTime) {
  ReplicaDemand demand(2, kAfterNs);
  demand.see(lacking(500), 0);
  demand.see(lacking(500), kAfterNs);
  ASSERT_EQ(demand.wanted(), 7);
  const TimeNs begun_ns = 2 * kAfterNs;
  demand.see(lacking(0), begun_ns);
  demand.see(lacking(600), begun_ns + 1);
  demand.see(lacking(0), begun_ns + 2);
  demand.see(lacking(250), begun_ns + 3);
  demand.see(lacking(0), begun_ns + 2 + kAfterNs - 1);
  EXPECT_EQ(demand.wanted(), 7);
  demand.see(lacking(0), begun_ns + 2 + kAfterNs);
  EXPECT_EQ(demand.wanted(), 5) << "the most that was needed meanwhile";
  EXPECT_EQ(demand.next_ns(), begun_ns + 2 + 2 * kAfterNs) << "fewer, although nothing happens";
  demand.see(lacking(0), begun_ns + 2 + 2 * kAfterNs);
  EXPECT_EQ(demand.wanted(), 2);
  EXPECT_FALSE(demand.next_ns().has_value());
}

TEST(ReplicaDemand, WithoutATimeEachLookCounts) {
  ReplicaDemand demand(2, 0);
  demand.see(lacking(1), 7);
  EXPECT_EQ(demand.wanted(), 3);
  demand.see(lacking(0), 7);
  EXPECT_EQ(demand.wanted(), 2);
}

}  // namespace
}  // namespace protean
