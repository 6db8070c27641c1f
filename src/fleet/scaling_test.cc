// Tests groups that form for requests that no replica can hold (AMOEBA section 3.3).

#include "fleet/scaling.h"

#include <gtest/gtest.h>

#include <random>

#include "base/repetitions_for_test.h"
#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

ScaleCandidate candidate(int replica, int replicas, int requests) {
  return {.replica = ReplicaId{replica}, .replicas = replicas, .requests = requests};
}

std::vector<int> chosen(const std::vector<ScaleCandidate>& candidates, std::int64_t blocks) {
  const std::vector<std::int64_t> blocks_of = {10, 25, 60, 130};
  std::vector<int> replicas;
  for (const ReplicaId replica :
       choose_scale_up(candidates, blocks, blocks_of).value_or(std::vector<ReplicaId>{})) {
    replicas.push_back(replica.value);
  }
  return replicas;
}

TEST(Scaling, TheLeastLoadedUnitsOfTheSmallestSizeThatSufficesBecomeOne) {
  const std::vector<ScaleCandidate> alone = {candidate(0, 1, 5), candidate(1, 1, 2),
                                             candidate(2, 1, 9), candidate(3, 1, 1)};
  EXPECT_EQ(chosen(alone, 20), (std::vector{3, 1}));
  EXPECT_EQ(chosen(alone, 50), (std::vector{3, 1})) << "one step of two on the way to four";
  const std::vector<ScaleCandidate> mixed = {candidate(0, 2, 5), candidate(2, 2, 3),
                                             candidate(4, 1, 9), candidate(5, 1, 1)};
  EXPECT_EQ(chosen(mixed, 20), (std::vector{5, 4}));
  EXPECT_EQ(chosen(mixed, 50), (std::vector{2, 0}));
  EXPECT_EQ(chosen({candidate(0, 2, 5), candidate(2, 1, 3)}, 50), std::vector<int>());
}

TEST(Scaling, AsManyReplicasAsARequestNeedsDivideLayers) {
  const std::vector<std::int64_t> blocks_of = {10, 25, 60, 130};
  const auto chosen = [&](const std::vector<ScaleCandidate>& candidates, std::int64_t blocks) {
    std::vector<int> replicas;
    for (const ReplicaId replica :
         choose_scale_layers(candidates, blocks, blocks_of).value_or(std::vector<ReplicaId>{})) {
      replicas.push_back(replica.value);
    }
    return replicas;
  };
  const std::vector<ScaleCandidate> alone = {candidate(0, 1, 5), candidate(1, 1, 2),
                                             candidate(2, 1, 9), candidate(3, 1, 1)};
  EXPECT_EQ(chosen(alone, 20), (std::vector{3, 1}));
  EXPECT_EQ(chosen(alone, 50), (std::vector{3, 1, 0, 2})) << "at once";
  EXPECT_EQ(chosen(alone, 100), std::vector<int>()) << "eight would be needed";
  EXPECT_EQ(chosen({candidate(0, 2, 0), candidate(2, 1, 3), candidate(3, 1, 4)}, 50),
            std::vector<int>())
      << "groups by layers do not grow";
}

TEST(Scaling, AGroupPartsOnceItsLongRequestsHaveEndedAndHalfOfItsKvIsFree) {
  ScaleCandidate group = candidate(0, 2, 3);
  EXPECT_FALSE(is_closing(group)) << "another than the policy formed it";
  group.formed_for_long = true;
  group.kv_used_share = 0.5;
  EXPECT_TRUE(may_scale_down(group));
  group.kv_used_share = 0.51;
  EXPECT_TRUE(is_closing(group));
  EXPECT_FALSE(may_scale_down(group));
  group.holds_long = true;
  EXPECT_FALSE(is_closing(group));
  EXPECT_FALSE(is_closing(candidate(0, 1, 3)));
}

TEST(Scaling, NeighboursBecomeOneAroundAReplica) {
  const auto two = [](const std::vector<ScaleCandidate>& candidates, int at) {
    std::vector<int> replicas;
    for (const ReplicaId replica :
         choose_neighbours(candidates, ReplicaId{at}).value_or(std::vector<ReplicaId>{})) {
      replicas.push_back(replica.value);
    }
    return replicas;
  };
  const std::vector<ScaleCandidate> alone = {candidate(0, 1, 0), candidate(1, 1, 9),
                                             candidate(2, 1, 0), candidate(3, 1, 0)};
  EXPECT_EQ(two(alone, 1), (std::vector{0, 1})) << "whatever the load";
  EXPECT_EQ(two(alone, 2), (std::vector{2, 3}));
  EXPECT_EQ(two({candidate(0, 2, 0), candidate(2, 1, 0), candidate(3, 1, 0)}, 1),
            (std::vector{2, 3}))
      << "the neighbours become one first";
  EXPECT_EQ(two({candidate(0, 2, 0), candidate(2, 2, 0)}, 3), (std::vector{0, 2}));
  EXPECT_EQ(two({candidate(0, 4, 0)}, 3), std::vector<int>()) << "there are no others";
}

TEST(Scaling, TheChosenReplicaGrowsWithItsNeighboursEvenIfAGroupCouldHoldTheRequest) {
  GroupScene scene({.replicas = 4, .scale = ScalePolicy::kNeighbours});
  scene.arrive(0, 120, 10);  // replica 0 is least loaded: it grows with replica 1
  scene.arrive(1, 120, 10);  // replica 1 is parked or as busy, so another one grows
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1 2 3");
  EXPECT_EQ(scene.sink.groups->failures_total, 0);
  EXPECT_GE(scene.sink.groups->together_total, 1);
}

TEST(Scaling, PoliciesHaveNames) {
  EXPECT_EQ(parse_scale("paper").value(), ScalePolicy::kPaper);
  EXPECT_EQ(parse_scale("off").value(), ScalePolicy::kOff);
  EXPECT_EQ(parse_scale("wide").error().message,
            "--scale wide: use off, paper, layers, neighbours or joint");
}

TEST(Scaling, ALongRequestWaitsForAGroupThatPartsAfterIt) {
  GroupScene scene({.replicas = 4, .scale = ScalePolicy::kPaper});
  for (int topic = 0; topic < 4; ++topic) {
    scene.arrive(topic, 20, 30);
  }
  scene.arrive(5, 120, 10);  // 33 blocks, and a replica has 24
  EXPECT_TRUE(scene.sink.seen.at(RequestId{5}).accepted);
  scene.arrive(5, 230, 10);  // needs four replicas
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1 2 3");
  ASSERT_FALSE(scene.sink.groups->history.empty());
  EXPECT_EQ(scene.sink.groups->history[0].reason, "request 5 needs 33 KV blocks");
  EXPECT_EQ(scene.sink.groups->history.back().reason,
            "long requests have ended and half of the KV cache is free");
  EXPECT_EQ(scene.sink.groups->failures_total, 0);
  scene.arrive(5, 1200, 10);
  EXPECT_EQ(scene.sink.seen.at(RequestId{7}).refused->code, ErrorCode::kInvalidArgument)
      << "no group could hold it";
}

// A group that an operator formed, by shards or layers, serves like any replica and does not part.
TEST(Scaling, AGroupThatThePolicyDidNotFormTakesShortRequests) {
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    for (const ScalePolicy scale : {ScalePolicy::kPaper, ScalePolicy::kNeighbours}) {
      GroupScene scene({.replicas = 4, .scale = scale});
      ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
      scene.settle();
      for (int topic = 0; topic < 3; ++topic) {
        scene.arrive(topic, 20, 30);
      }
      EXPECT_EQ(
          scene.fleet->observe(ReplicaId{0}).waiting + scene.fleet->observe(ReplicaId{0}).running,
          1)
          << "by " << to_string(by);
      scene.settle();
      scene.expect_all_answered();
      EXPECT_EQ(scene.groups(), "01 2 3");
    }
  }
}

// The group's KV has to shrink before it can part. Requests for which the others have no room queue
// there.
TEST(Scaling, ShortRequestsAvoidAGroupThatWaitsToPart) {
  GroupScene scene({.replicas = 4, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 100, 60);  // 40 blocks, and a replica has 24
  const auto waits = [&] { return scene.stage() == "waits for room in the replicas"; };
  for (int round = 0; round < 1'000 && !waits(); ++round) {
    scene.ready();
    for (int replica = 0; replica < 4; ++replica) {
      scene.work(replica);
    }
  }
  ASSERT_TRUE(waits());
  for (int topic = 0; topic < 8; ++topic) {
    scene.arrive(topic, 60, 10);
  }
  const Observation& group = scene.fleet->observe(ReplicaId{0});
  EXPECT_EQ(group.running + group.waiting, 0);
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1 2 3");
}

// Devices that have dropped layers join no others, so a long request leaves their group alone. It
// does not wait for a group that no policy is sure to part.
TEST(Scaling, AGroupByLayersIsNotPartedForALongRequest) {
  for (const DropPolicy drop : {DropPolicy::kOff, DropPolicy::kReleased, DropPolicy::kJoint}) {
    GroupScene scene({.replicas = 4, .scale = ScalePolicy::kPaper, .drop = drop});
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.settle();
    scene.arrive(5, 700, 10);  // needs four replicas
    scene.settle();
    const auto& finished = scene.sink.seen.at(RequestId{1}).finished;
    ASSERT_TRUE(finished.has_value()) << "it waits without end";
    EXPECT_EQ(finished->reason, FinishReason::kFailed);
    EXPECT_TRUE(finished->may_retry) << "another group may form later";
  }
}

// While KV is short, a long request waits until replicas that dropped layers have them again.
TEST(Scaling, ALongRequestWaitsForReplicasThatHaveDroppedLayers) {
  GroupScene scene({.replicas = 4, .scale = ScalePolicy::kPaper, .drop = DropPolicy::kPaper});
  for (int topic = 0; topic < 4; ++topic) {
    scene.arrive(topic, 60, 30);
  }
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  for (int round = 0; round < 1'000 && scene.groups() != "01 2 3"; ++round) {
    scene.ready();
    scene.work(0);
    scene.work(1);
  }
  ASSERT_EQ(scene.groups(), "01 2 3");
  ASSERT_FALSE(scene.sink.seen.at(RequestId{1}).finished) << "the burst goes on";
  scene.arrive(5, 700, 10);  // needs four replicas
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1 2 3");
  for (const RegroupRecord& record : scene.sink.groups->history) {
    if (record.by == GroupBy::kLayers && !record.together) {
      EXPECT_EQ(record.reason, "KV in use fits the replicas with all layers");
    }
  }
}

TEST(Scaling, AHeldRequestCanBeCancelledOrExpire) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  scene.send(Cancel{RequestId{1}});
  EXPECT_EQ(scene.sink.seen.at(RequestId{1}).finished->reason, FinishReason::kCancelled);
  Request late;
  late.id = RequestId{2};
  late.prompt.assign(120, 7);
  late.max_tokens = 10;
  late.deadlines.finish_ns = scene.now_ns + 100;
  scene.send(Arrival{late});
  ASSERT_TRUE(scene.sink.seen.at(RequestId{2}).accepted);
  EXPECT_EQ(scene.fleet->next_deadline_ns(), late.deadlines.finish_ns);
  scene.tick();
  EXPECT_EQ(scene.sink.seen.at(RequestId{2}).finished->reason, FinishReason::kTimeout);
  scene.settle();
  EXPECT_TRUE(scene.fleet->idle());
  EXPECT_EQ(scene.groups(), "0 1");
}

// Fails every preparation but the first `good` ones, until the request ends.
void fail_preparations(GroupScene& scene, RequestId until, int good) {
  for (int round = 0; round < 10'000 && !scene.sink.seen.at(until).finished; ++round) {
    bool more = false;
    if (!scene.devices.preparing.empty()) {
      more = good-- > 0 ? scene.ready() : scene.ready(0, Error{ErrorCode::kExhausted, "no page"});
    }
    for (int replica = 0; replica < static_cast<int>(scene.fleet->size()); ++replica) {
      more = scene.work(replica) || more;
    }
    if (!more) {
      scene.tick();
    }
  }
}

TEST(Scaling, AGroupThatCannotBeFormedIsTriedAFewTimes) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  fail_preparations(scene, RequestId{1}, 0);
  const auto& finished = scene.sink.seen.at(RequestId{1}).finished;
  ASSERT_TRUE(finished.has_value()) << "it waits without end";
  EXPECT_EQ(finished->reason, FinishReason::kFailed);
  EXPECT_EQ(finished->failure,
            "the request needs a group of replicas, and none could be formed in 4 attempts (the "
            "latest: embeddings in shards 0-1, 2-3 failed: no page): send it again later");
  const auto& history = scene.sink.groups->history;
  ASSERT_EQ(history.size(), 4U);
  for (std::size_t i = 1; i < history.size(); ++i) {
    EXPECT_GE(history[i].asked_ns - history[i - 1].done_ns, (kNsPerS << (i - 1)) - 1);
  }
  EXPECT_EQ(scene.groups(), "0 1");
}

TEST(Scaling, ARequestThatWaitedBehindAnotherHasAttemptsOfItsOwn) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kLayers});
  scene.arrive(5, 120, 10);
  scene.arrive(6, 120, 10);
  fail_preparations(scene, RequestId{1}, 0);
  ASSERT_TRUE(scene.sink.seen.at(RequestId{1}).finished.has_value());
  for (int round = 0; round < 1'000 && !scene.sink.seen.at(RequestId{2}).finished; ++round) {
    scene.settle();
    scene.tick();
  }
  scene.expect_answer(RequestId{2});
}

TEST(Scaling, AGroupThatFormsAndCannotHoldTheRequestIsTriedAFewTimes) {
  for (const ScalePolicy scale : {ScalePolicy::kPaper, ScalePolicy::kLayers}) {
    GroupScene scene({.replicas = 2, .keeps_kv = true, .scale = scale});
    scene.arrive(5, 200, 10);  // more than both replicas have together
    for (int round = 0; round < 100 && !scene.sink.seen.at(RequestId{1}).finished; ++round) {
      scene.settle();
      scene.tick();
    }
    const auto& finished = scene.sink.seen.at(RequestId{1}).finished;
    ASSERT_TRUE(finished.has_value()) << "it waits without end";
    EXPECT_EQ(finished->reason, FinishReason::kFailed);
    EXPECT_LE(scene.sink.groups->history.size(), 8U);
    scene.arrive(6, 20, 5);
    scene.settle();
    scene.expect_answer(RequestId{2});
  }
}

// Each time, an operator's group of other replicas fails too.
TEST(Scaling, ChangesThatFailTogetherAreOneAttempt) {
  GroupScene scene({.replicas = 4, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  for (int attempt = 0; attempt < 3; ++attempt) {
    for (int round = 0; round < 100 && !scene.changing(); ++round) {
      scene.tick();
    }
    ASSERT_TRUE(scene.want({{2, 3}}).ok());
    ASSERT_EQ(scene.sink.groups->running.size(), 2U);
    for (int round = 0; round < 100 && scene.changing(); ++round) {
      scene.ready(0, Error{ErrorCode::kExhausted, "no page"});
      for (int replica = 0; replica < 4; ++replica) {
        scene.work(replica);
      }
    }
    ASSERT_FALSE(scene.changing());
  }
  EXPECT_EQ(scene.sink.groups->failures_total, 6);
  for (int round = 0; round < 100 && !scene.sink.seen.at(RequestId{1}).finished; ++round) {
    scene.settle();
    scene.tick();
  }
  scene.expect_answer(RequestId{1});
}

// The request waits for replicas 0 and 1, which take their time.
TEST(Scaling, ChangesOfOtherReplicasThatFailAreNoAttempts) {
  GroupScene scene({.replicas = 4, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  for (int attempt = 0; attempt < 6; ++attempt) {
    scene.now_ns += 100 * kNsPerS;  // so that each failure is one of its own
    ASSERT_TRUE(scene.want({{2, 3}}).ok());
    ASSERT_EQ(scene.sink.groups->running.size(), 2U);
    for (int round = 0; round < 100 && scene.sink.groups->running.size() > 1; ++round) {
      const auto& preparing = scene.devices.preparing;
      const auto other =
          std::ranges::find(preparing, ReplicaId{2}, [](const auto& one) { return one.first; });
      scene.ready(static_cast<std::size_t>(other - preparing.begin()),
                  Error{ErrorCode::kExhausted, "no page"});
      scene.work(2);
      scene.work(3);
    }
    ASSERT_EQ(scene.sink.groups->running.size(), 1U);
    ASSERT_FALSE(scene.sink.seen.at(RequestId{1}).finished);
  }
  EXPECT_EQ(scene.sink.groups->failures_total, 6);
  scene.settle();
  scene.expect_all_answered();
}

TEST(Scaling, ARequestDoesNotWaitForAGroupThatCanGoNeitherWay) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  fail_preparations(scene, RequestId{1}, 2);
  ASSERT_TRUE(scene.sink.seen.at(RequestId{1}).finished.has_value()) << "it waits without end";
  EXPECT_EQ(scene.sink.seen.at(RequestId{1}).finished->reason, FinishReason::kFailed);
  scene.arrive(1, 20, 10);
  scene.settle();
  scene.expect_answer(RequestId{2});
  EXPECT_EQ(scene.groups(), "0 1");
}

// A step fails, and another one on the way back. Then an operator orders the group on and back.
TEST(Scaling, AnOperatorsOrdersAreNoFailedAttempts) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  int failed = 0;
  for (int round = 0; round < 1'000 && failed < 2; ++round) {
    const auto running = scene.running();
    if (!running || running->record.steps == 0) {
      scene.ready();
    } else if (scene.ready(0, Error{ErrorCode::kExhausted, "no page"})) {
      ++failed;
    }
    scene.work(0);
    scene.work(1);
  }
  for (int turn = 0; turn < 4; ++turn) {
    ASSERT_TRUE(scene.changing());
    ASSERT_TRUE(scene.want({{0, 1}}).ok());
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    ASSERT_FALSE(scene.sink.seen.at(RequestId{1}).finished);
  }
  for (int round = 0; round < 100 && !scene.sink.seen.at(RequestId{1}).finished; ++round) {
    scene.settle();
    scene.tick();
  }
  scene.expect_answer(RequestId{1});
}

TEST(Scaling, AGroupThatPartsTurnsBackForALongRequest) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kPaper});
  scene.arrive(5, 120, 10);
  const auto parts = [&] {
    const auto running = scene.running();
    return running && !running->record.together && running->record.steps > 0;
  };
  for (int round = 0; round < 1'000 && !parts(); ++round) {
    scene.ready();
    scene.work(0);
    scene.work(1);
  }
  ASSERT_TRUE(scene.sink.seen.at(RequestId{1}).finished.has_value());
  ASSERT_TRUE(parts()) << "its devices have fetched a first component";
  scene.arrive(6, 120, 10);
  ASSERT_TRUE(scene.changing());
  EXPECT_TRUE(scene.running()->record.together);
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1");
  EXPECT_EQ(scene.sink.groups->history.at(1).failure, "turned back: request 2 needs 33 KV blocks");
}

TEST(Scaling, AHeldRequestWaitsForAGroupThatIsBusy) {
  GroupScene scene({.replicas = 2, .scale = ScalePolicy::kPaper, .step_cost = {.token_us = 1'000}});
  scene.arrive(5, 120, 10);
  scene.arrive(6, 120, 10, {.first_token_ns = scene.now_ns + 150 * kNsPerMs});
  for (int round = 0; round < 1'000 && scene.fleet->observe(ReplicaId{0}).kv_blocks < 48; ++round) {
    scene.ready();
    scene.work(0);
    scene.work(1);
  }
  EXPECT_EQ(scene.groups(), "01");
  EXPECT_FALSE(scene.sink.seen.at(RequestId{2}).finished.has_value())
      << scene.sink.seen.at(RequestId{2}).finished->failure;
  scene.settle();
  scene.expect_all_answered();
}

// Short and long requests at random: each accepted one ends once, with the right tokens, and in the
// end all replicas are alone.
TEST(Scaling, RandomLongRequestsAreServedWithoutAnOperator) {
  int together = 0;
  int wide = 0;
  for (int seed = 0; seed < repetitions(30); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int replicas = seed % 2 == 0 ? 2 : 4;
    const ScalePolicy scale = seed % 3 == 0 ? ScalePolicy::kLayers : ScalePolicy::kPaper;
    GroupScene scene({.replicas = replicas, .blocks = 20, .steps_at_once = 2, .scale = scale});
    for (int event = 0; event < 3'000; ++event) {
      const int dice = below(200);
      if (dice < 6) {
        scene.arrive(below(6), 1 + below(40), 1 + below(30));
      } else if (dice < 7) {
        scene.arrive(below(6), 70 + below(60 * replicas), 1 + below(10));
      } else if (dice < 8 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 50) {
        scene.ready();
      } else if (dice < 55) {
        scene.tick();
      } else {
        scene.work(below(replicas));
      }
    }
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.groups(), replicas == 2 ? "0 1" : "0 1 2 3");
    for (const RegroupRecord& record : scene.sink.groups->history) {
      together += record.together ? 1 : 0;
      wide += record.together && record.replicas.front() != record.replicas.back() &&
                      record.replicas.back().value - record.replicas.front().value > 1
                  ? 1
                  : 0;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(together, repetitions(60));
  EXPECT_GT(wide, repetitions(5));
}

}  // namespace
}  // namespace protean
