#include "fleet/group_attempts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

TEST(GroupAttempts, PausesAreLongerAfterEachFailureInARow) {
  GroupAttempts attempts;
  TimeNs now_ns = 0;
  for (const TimeNs pause_s : {1, 2, 4, 8, 16, 32, 32}) {
    EXPECT_TRUE(attempts.may_ask(now_ns));
    attempts.failed(now_ns);
    attempts.failed(now_ns + 1);  // it was asked for before
    now_ns += pause_s * kNsPerS;
    EXPECT_EQ(attempts.not_before_ns(), now_ns);
  }
  now_ns += 33 * kNsPerS;
  attempts.failed(now_ns);
  EXPECT_EQ(attempts.not_before_ns(), now_ns + kNsPerS) << "the others are long ago";
}

TEST(GroupAttempts, AFailureCountsForTheRequestsThatWaitForTheChange) {
  const Grouping::Failure of_others{.replicas = {ReplicaId{2}, ReplicaId{3}}, .why = "no page"};
  Grouping::Failure stuck = of_others;
  stuck.stuck = true;
  Grouping::Failure awaited{.replicas = {ReplicaId{0}, ReplicaId{1}}, .why = "no page"};
  GroupAttempts attempts;
  EXPECT_FALSE(attempts.counts(of_others)) << "it has ended, and others can form";
  EXPECT_TRUE(attempts.counts(stuck)) << "no other group can form";
  attempts.asked(awaited.replicas, ReplicaId{1});
  EXPECT_FALSE(attempts.counts(stuck));
  EXPECT_TRUE(attempts.counts(awaited));
  EXPECT_TRUE(attempts.concerns(awaited, ReplicaId{1}));
  EXPECT_TRUE(attempts.concerns(awaited, ReplicaId{0})) << "the group would hold it";
  EXPECT_FALSE(attempts.concerns(awaited, ReplicaId{4}));
  EXPECT_FALSE(attempts.counts(awaited)) << "it turned back";
  awaited.stuck = true;
  EXPECT_TRUE(attempts.counts(awaited));
  EXPECT_TRUE(attempts.concerns(awaited, ReplicaId{4})) << "no other group can form";
}

// Two pairs take turns: each forms, cannot hold the request and parts while the other one forms.
TEST(GroupAttempts, PairsThatFormInTurnAndCannotHoldTheRequestAreTriedAFewTimes) {
  GroupScene scene({.replicas = 4, .keeps_kv = true, .scale = ScalePolicy::kLayers});
  scene.arrive(5, 200, 10);  // more than two replicas have together; four have too few layers
  for (int round = 0; round < 200 && !scene.sink.seen.at(RequestId{1}).finished; ++round) {
    scene.settle();
    scene.tick();
  }
  const auto& finished = scene.sink.seen.at(RequestId{1}).finished;
  ASSERT_TRUE(finished.has_value()) << "it waits without end";
  EXPECT_EQ(finished->reason, FinishReason::kFailed);
  const auto formed = [&](int first) {
    return std::ranges::any_of(scene.sink.groups->history, [&](const RegroupRecord& record) {
      return record.together && record.replicas.front() == ReplicaId{first};
    });
  };
  EXPECT_TRUE(formed(0) && formed(2)) << "a group of other replicas is no attempt that failed";
  scene.arrive(6, 20, 5);
  scene.settle();
  scene.expect_answer(RequestId{2});
}

}  // namespace
}  // namespace protean
