// Tests replicas that drop layers while KV is short, and fetch them back (KunServe section 4).

#include "fleet/dropping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

constexpr std::int64_t kBlockBytes = 100;
constexpr std::int64_t kCopyBytes = 10 * kBlockBytes;
constexpr std::int64_t kStageBytes = kCopyBytes + 20 * kBlockBytes;

DropCandidate drop_candidate(std::vector<int> replicas, std::int64_t used, std::int64_t awaited) {
  DropCandidate candidate{.replicas = {},
                          .by_layers = replicas.size() > 1,
                          .kv_blocks = 20 * std::ssize(replicas),
                          .kv_blocks_used = used,
                          .kv_blocks_awaited = awaited,
                          .whole_kv_blocks = 20 * std::ssize(replicas),
                          .home_kv_blocks = 20};
  for (const int replica : replicas) {
    candidate.replicas.push_back(ReplicaId{replica});
    candidate.homes.push_back({ReplicaId{replica}});
  }
  return candidate;
}

std::string shown(const std::optional<GroupWish>& wish) {
  std::string text;
  for (const auto& group : wish ? wish->groups : std::vector<std::vector<ReplicaId>>{}) {
    text += text.empty() ? "" : " ";
    for (const ReplicaId replica : group) {
      text += std::to_string(replica.value);
    }
  }
  return text;
}

// Returns the groups that are chosen if all candidates of equal size have equal forms, with layers
// of ten blocks.
std::string drop_of(const std::vector<DropCandidate>& candidates, int layers = 12) {
  std::vector<DropHolding> holdings;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].by_layers) {
      holdings.push_back({.candidate = i,
                          .kind = static_cast<int>(candidates[i].replicas.size()),
                          .layers = layers,
                          .layer_bytes = kCopyBytes,
                          .memory_bytes = std::ssize(candidates[i].replicas) * kStageBytes});
    }
  }
  return shown(choose_drop(candidates, holdings, kBlockBytes));
}

TEST(Dropping, AsManyGroupsFormAsTheLackOfKvNeeds) {
  const auto four = [](std::int64_t awaited) {
    return std::vector{drop_candidate({0}, 20, awaited), drop_candidate({1}, 20, 0),
                       drop_candidate({2}, 20, 0), drop_candidate({3}, 20, 0)};
  };
  EXPECT_EQ(drop_of(four(0)), "");
  EXPECT_EQ(drop_of(four(10)), "01");
  EXPECT_EQ(drop_of(four(11)), "01 23");
  EXPECT_EQ(drop_of(four(20)), "01 23");
  EXPECT_EQ(drop_of(four(21)), "0123");
  EXPECT_EQ(drop_of(four(900)), "0123") << "all there is";
  const std::vector three = {drop_candidate({0}, 20, 11), drop_candidate({1}, 20, 0),
                             drop_candidate({2}, 20, 0)};
  EXPECT_EQ(drop_of(three), "012") << "three stages";
  EXPECT_EQ(drop_of(three, 2), "01") << "no stage is without a layer";
}

TEST(Dropping, FreeKvOfOthersCountsFirst) {
  EXPECT_EQ(drop_of({drop_candidate({0}, 20, 9), drop_candidate({1}, 10, 0)}), "");
  EXPECT_EQ(drop_of({drop_candidate({0}, 20, 11), drop_candidate({1}, 10, 0)}), "01");
}

TEST(Dropping, FreePiecesThatHoldNoQueuedRequestDoNotCount) {
  const auto three = [](std::int64_t free, std::int64_t awaited, int waiting) {
    std::vector candidates = {drop_candidate({0}, 20, awaited), drop_candidate({1}, 20 - free, 0),
                              drop_candidate({2}, 20 - free, 0)};
    candidates[0].waiting = waiting;
    return candidates;
  };
  EXPECT_EQ(drop_of(three(6, 12, 2)), "");
  EXPECT_EQ(drop_of(three(5, 12, 2)), "012") << "twelve blocks are lacking, and ten are free";
  EXPECT_EQ(drop_of(three(5, 10, 2)), "");
}

TEST(Dropping, GroupsThatHaveDroppedLayersStay) {
  EXPECT_EQ(drop_of({drop_candidate({0, 1}, 40, 9), drop_candidate({2}, 20, 0),
                     drop_candidate({3}, 20, 0)}),
            "23");
  EXPECT_EQ(drop_of({drop_candidate({0, 1}, 40, 9), drop_candidate({2, 3}, 40, 0)}), "");
}

// As in figure 6, the smallest groups come first.
TEST(Dropping, PipelinesBecomeOneWhenNoReplicaIsLeft) {
  const auto chosen = [](std::int64_t awaited) {
    const std::vector candidates = {drop_candidate({0, 1}, 40, awaited),
                                    drop_candidate({2, 3}, 40, 0), drop_candidate({4}, 20, 0),
                                    drop_candidate({5}, 20, 0)};
    std::vector<DropHolding> holdings(
        4, {.layers = 4, .layer_bytes = kCopyBytes, .memory_bytes = kStageBytes});
    for (std::size_t i = 0; i < 4; ++i) {
      holdings[i].candidate = i;
      holdings[i].stages = static_cast<int>(candidates[i].replicas.size());
    }
    return shown(choose_drop(candidates, holdings, kBlockBytes));
  };
  EXPECT_EQ(chosen(9), "45");
  EXPECT_EQ(chosen(19), "0123 45");
}

// The sizes of figure 6: the two smallest groups become one, although they are of unequal length.
TEST(Dropping, TheTwoSmallestPipelinesBecomeOne) {
  const auto chosen = [](std::int64_t awaited, int layers) {
    const std::vector candidates = {drop_candidate({0, 1, 2}, 60, awaited),
                                    drop_candidate({3, 4}, 40, 0), drop_candidate({5}, 20, 0)};
    std::vector<DropHolding> holdings;
    for (std::size_t i = 0; i < 3; ++i) {
      holdings.push_back({.candidate = i,
                          .stages = static_cast<int>(candidates[i].replicas.size()),
                          .layers = layers,
                          .layer_bytes = kCopyBytes,
                          .memory_bytes = kStageBytes});
    }
    return shown(choose_drop(candidates, holdings, kBlockBytes));
  };
  EXPECT_EQ(chosen(10, 12), "345");
  EXPECT_EQ(chosen(11, 12), "012345");
  EXPECT_EQ(chosen(11, 5), "345") << "six stages would leave one without a layer";
}

TEST(Dropping, OnlyEqualFormsBecomeOneGroup) {
  DropCandidate by_shards = drop_candidate({0, 1}, 40, 19);
  by_shards.by_layers = false;
  EXPECT_EQ(drop_of({by_shards, drop_candidate({2}, 20, 0)}), "");
  EXPECT_EQ(drop_of({by_shards, drop_candidate({2}, 20, 0), drop_candidate({3}, 20, 0)}), "23")
      << "less than is lacking, but what there is";
  DropCandidate other = drop_candidate({2, 3}, 40, 0);
  other.by_layers = false;
  EXPECT_EQ(drop_of({by_shards, other}), "0123");
  const std::vector three = {drop_candidate({0}, 20, 11), drop_candidate({1}, 20, 0),
                             drop_candidate({2}, 20, 0)};
  const DropHolding holding{.layers = 8, .layer_bytes = kCopyBytes, .memory_bytes = kStageBytes};
  std::vector<DropHolding> holdings(3, holding);
  for (std::size_t i = 0; i < 3; ++i) {
    holdings[i].candidate = i;
    holdings[i].kind = i == 1 ? 1 : 0;
  }
  const std::optional<GroupWish> wish = choose_drop(three, holdings, kBlockBytes);
  EXPECT_EQ(shown(wish), "02");
  EXPECT_EQ(wish->by, GroupBy::kLayers);
}

TEST(Dropping, LayersAreFetchedBackBelowHalfOfWhatReplicasHoldWithoutADrop) {
  EXPECT_EQ(shown(choose_restore(std::vector{drop_candidate({0, 1}, 19, 0)})), "0 1");
  EXPECT_EQ(shown(choose_restore(std::vector{drop_candidate({0, 1}, 20, 0)})), "");
  EXPECT_EQ(shown(choose_restore(std::vector{drop_candidate({0, 1}, 18, 1)})), "0 1")
      << "a request waits, but not for KV";
  EXPECT_EQ(shown(choose_restore(std::vector{drop_candidate({0, 1}, 18, 2)})), "");
  EXPECT_EQ(shown(choose_restore(std::vector{drop_candidate({0}, 1, 0)})), "");
}

// The parts of a group by layers may be groups by shards, which are another policy's.
TEST(Dropping, AGroupPartsIntoTheGroupsThatItWasMadeOf) {
  DropCandidate group = drop_candidate({0, 1, 2, 3}, 10, 0);
  group.homes = {{ReplicaId{0}, ReplicaId{1}}, {ReplicaId{2}, ReplicaId{3}}};
  EXPECT_EQ(shown(choose_restore(std::vector{group})), "01 23");
  DropVote vote;
  std::string last;
  for (int i = 0; i < 30; ++i) {
    group.kv_blocks_used = i < 29 ? 20 : 10;
    last = shown(vote.vote(std::vector{group}, i * kNsPerS / 2));
  }
  EXPECT_EQ(last, "01 23");
}

TEST(Dropping, LayersStayDroppedWhileARequestIsLongerThanAReplicaHolds) {
  DropCandidate group = drop_candidate({0, 1}, 10, 0);
  group.largest_need = 20;
  EXPECT_EQ(shown(choose_restore(std::vector{group})), "0 1");
  group.largest_need = 21;
  EXPECT_EQ(shown(choose_restore(std::vector{group})), "");
}

TEST(Dropping, AGroupThatChangesIsNotRestored) {
  DropCandidate group = drop_candidate({0, 1}, 10, 0);
  group.settled = false;
  EXPECT_EQ(shown(choose_restore(std::vector{group, drop_candidate({2, 3}, 10, 0)})), "2 3");
}

// Without the group, 25 blocks are free instead of 30.
TEST(Dropping, LayersStayDroppedIfWhatRemainsFreeHoldsTooFewWholeRequests) {
  DropCandidate group = drop_candidate({0, 1}, 15, 0);
  group.kv_blocks = 45;
  const auto with = [&](std::int64_t awaited, int waiting) {
    DropCandidate other = drop_candidate({2}, 20, awaited);
    other.waiting = waiting;
    return shown(choose_restore(std::vector{group, other}));
  };
  EXPECT_EQ(with(24, 1), "0 1") << "25 blocks hold it";
  EXPECT_EQ(with(26, 1), "");
  EXPECT_EQ(with(24, 2), "0 1");
  EXPECT_EQ(with(26, 2), "") << "25 blocks hold one of 13";
}

TEST(Dropping, LayersStayDroppedWhileRequestsWouldLackKvWithThem) {
  DropCandidate group = drop_candidate({0, 1}, 10, 0);  // has 20 blocks by what it dropped
  group.kv_blocks = 60;
  EXPECT_EQ(shown(choose_restore(std::vector{group, drop_candidate({2}, 20, 30)})), "0 1");
  EXPECT_EQ(shown(choose_restore(std::vector{group, drop_candidate({2}, 20, 31)})), "")
      << "it would drop again at once";
}

TEST(Dropping, PoliciesHaveNames) {
  EXPECT_EQ(parse_drop("paper").value(), DropPolicy::kPaper);
  EXPECT_EQ(parse_drop("off").value(), DropPolicy::kOff);
  EXPECT_EQ(parse_drop("released").value(), DropPolicy::kReleased);
  EXPECT_EQ(parse_drop("all").error().message, "--drop all: use off, paper, released or joint");
}

TEST(DropVote, ReplicasDropIfHalfOfThemAreFullAndTheirQueuesNeedWhatIsFree) {
  const auto after = [](std::vector<DropCandidate> candidates) {
    DropVote vote;
    return shown(vote.vote(candidates, 0));
  };
  const auto calm = [](int replica) { return drop_candidate({replica}, 5, 0); };
  const auto full = [](int replica) { return drop_candidate({replica}, 18, 2); };
  EXPECT_EQ(after({calm(0), calm(1), calm(2), calm(3)}), "");
  EXPECT_EQ(after({calm(0), full(1), calm(2), calm(3)}), "") << "one of four";
  EXPECT_EQ(after({calm(0), full(1), calm(2), full(3)}), "01 23") << "all of them drop";
  EXPECT_EQ(after({calm(0), full(1)}), "01");
  EXPECT_EQ(after({calm(0), full(1), calm(2)}), "01") << "half of three, rounded down";
  EXPECT_EQ(after({calm(0), drop_candidate({1}, 18, 1)}), "") << "more is free than is awaited";
  EXPECT_EQ(after({calm(0), drop_candidate({1}, 10, 8)}), "") << "less than 95 %";
  EXPECT_EQ(after({calm(0), drop_candidate({1}, 10, 10)}), "01");
}

TEST(DropVote, VotesAreATenthOfASecondApart) {
  DropVote vote;
  const std::vector full = {drop_candidate({0}, 18, 2), drop_candidate({1}, 18, 2)};
  EXPECT_TRUE(vote.vote(full, 0).has_value());
  EXPECT_FALSE(vote.vote(full, kNsPerS / 10 - 1).has_value());
  EXPECT_TRUE(vote.vote(full, kNsPerS / 10).has_value());
}

// Lets a group vote every half second about these demands, all in use, then returns its last vote.
std::string last_vote(const std::vector<std::int64_t>& used, std::int64_t awaited = 0) {
  DropVote vote;
  std::string last;
  TimeNs now_ns = 0;
  for (const std::int64_t& blocks : used) {
    const bool ends = &blocks == &used.back();
    last =
        shown(vote.vote(std::vector{drop_candidate({0, 1}, blocks, ends ? awaited : 0)}, now_ns));
    now_ns += kNsPerS / 2;
  }
  return last;
}

TEST(DropVote, GroupsRestoreIfNothingWaitsAndDemandHasFallenFor30Samples) {
  std::vector<std::int64_t> falling(30, 20);
  falling.back() = 19;
  EXPECT_EQ(last_vote(falling), "0 1");
  EXPECT_EQ(last_vote(falling, 1), "") << "a request waits";
  falling.pop_back();
  EXPECT_EQ(last_vote(falling), "") << "too few samples";
  EXPECT_EQ(last_vote(std::vector<std::int64_t>(40, 10)), "") << "demand is steady";
  std::vector<std::int64_t> high(30, 30);
  high.back() = 21;
  EXPECT_EQ(last_vote(high), "") << "more than half of what the replicas hold without a drop";
  std::vector<std::int64_t> risen(31, 5);
  risen.front() = 20;
  risen.back() = 6;
  EXPECT_EQ(last_vote(risen), "") << "the fall was before the latest 30";
}

TEST(DropVote, AGroupIsLookedAtAgainUntilItsDemandIsSteady) {
  DropVote vote;
  EXPECT_FALSE(vote.next_ns().has_value());
  for (int i = 0; i < 40; ++i) {
    (void)vote.vote(std::vector{drop_candidate({0, 1}, i < 10 ? 30 : 20, 0)}, i * kNsPerS / 2);
    EXPECT_EQ(vote.next_ns().has_value(), i < 39) << i;
  }
  (void)vote.vote(std::vector{drop_candidate({0}, 0, 0), drop_candidate({1}, 0, 0)}, 100 * kNsPerS);
  EXPECT_FALSE(vote.next_ns().has_value()) << "the group has ended";
}

// Two stages of three layers have room for a sixth more KV than two replicas. Weights of lower
// precision leave pages free, which the KV of a group takes.
TEST(Dropping, WhatAGroupGainsIsCountedByWhatItsStagesHold) {
  for (const bool lowered : {false, true}) {
    GroupScene scene({.replicas = 4, .blocks = 48, .drop = DropPolicy::kPaper});
    for (std::int32_t replica = 0; lowered && replica < 4; ++replica) {
      FormWish wish{.layers = scene.form.layer_precision, .kv_blocks = 48};
      std::fill(wish.layers.begin(), wish.layers.end(), LayerPrecision{});
      scene.send(WantForm{1, wish}, ReplicaId{replica});
      ASSERT_TRUE(scene.sink.form_answer->ok()) << scene.sink.form_answer->error().message;
    }
    scene.settle();
    for (int topic = 0; topic < 5; ++topic) {  // one fills each replica, and one lacks 48 blocks
      scene.arrive(topic, 192, 1);
    }
    scene.send(Cancel{RequestId{5}});
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.sink.groups->together_total, lowered ? 1 : 2);
  }
}

// Requests come until what the first group will have does not suffice.
void arrive_until_two_change(GroupScene& scene) {
  for (int topic = 5; topic < 10 && scene.sink.groups->running.size() < 2; ++topic) {
    scene.arrive(topic, 40, 1);
  }
}

// Each group makes room for few more requests. The second one begins while the first one forms, and
// one parts while the other one does.
TEST(Dropping, GroupsFormAndPartWhileOthersDo) {
  GroupScene scene({.replicas = 4, .blocks = 48, .drop = DropPolicy::kPaper});
  for (int topic = 0; topic < 4; ++topic) {
    scene.arrive(topic, 192, 1);  // fills a replica
  }
  scene.arrive(4, 40, 1);
  ASSERT_EQ(scene.sink.groups->running.size(), 1U);
  scene.send(Tick{});
  EXPECT_EQ(scene.sink.groups->running.size(), 1U) << "what it will have suffices";
  arrive_until_two_change(scene);
  ASSERT_EQ(scene.sink.groups->running.size(), 2U);
  EXPECT_EQ(scene.sink.groups->running.back().record.replicas,
            (std::vector{ReplicaId{2}, ReplicaId{3}}));
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1 2 3");
  std::vector<RegroupRecord> parted = scene.sink.groups->history;
  std::erase_if(parted, [](const RegroupRecord& record) { return record.together; });
  ASSERT_EQ(parted.size(), 2U);
  EXPECT_LT(parted[1].asked_ns, parted[0].done_ns);
}

// A short request more than replicas hold makes a pipeline of two stages. Later ones need the third
// replica in it too, and it parts into what it was made of.
TEST(Dropping, AReplicaJoinsAPipelineIfMoreKvIsLacking) {
  GroupScene scene({.replicas = 3, .blocks = 48, .drop = DropPolicy::kPaper});
  for (int topic = 0; topic < 3; ++topic) {
    scene.arrive(topic, 163, 30);  // fills a replica
  }
  scene.arrive(3, 40, 1);
  for (int topic = 4; topic < 7; ++topic) {
    scene.arrive(topic, 163, 30);
  }
  ASSERT_EQ(scene.sink.groups->running.size(), 1U);
  EXPECT_EQ(scene.sink.groups->running.front().record.replicas,
            (std::vector{ReplicaId{0}, ReplicaId{1}}));
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.sink.groups->failures_total, 0);
  EXPECT_TRUE(std::ranges::any_of(scene.sink.groups->history, [](const RegroupRecord& record) {
    return record.together && record.replicas == std::vector{ReplicaId{0}, ReplicaId{2}};
  }));
}

// Replicas that an operator lets change stay with that.
TEST(Dropping, APolicyLeavesReplicasAloneThatChange) {
  GroupScene scene({.replicas = 4, .blocks = 48, .drop = DropPolicy::kPaper});
  for (int topic = 0; topic < 4; ++topic) {
    scene.arrive(topic, 192, 1);
  }
  ASSERT_TRUE(scene.want({{1, 2}}, GroupBy::kLayers).ok());
  scene.arrive(4, 40, 1);
  EXPECT_EQ(scene.sink.groups->running.size(), 1U) << "what the group will have suffices";
  arrive_until_two_change(scene);
  const std::vector<RunningRegroup>& running = scene.sink.groups->running;
  ASSERT_EQ(running.size(), 2U);
  EXPECT_EQ(running[0].record.replicas, (std::vector{ReplicaId{1}, ReplicaId{2}}));
  EXPECT_EQ(running[0].record.reason, "an operator's wish");
  EXPECT_EQ(running[1].record.replicas, (std::vector{ReplicaId{0}, ReplicaId{3}}));
  EXPECT_EQ(running[1].record.reason, "queued requests lack KV");
  scene.settle();
  scene.expect_all_answered();
}

// A burst comes while a group waits for room in its replicas: it stays.
TEST(Dropping, AGroupThatWaitsToPartStaysIfKvIsShortAgain) {
  GroupScene scene({.drop = DropPolicy::kPaper});
  for (int topic = 0; topic < 8; ++topic) {
    scene.arrive(topic, 36, topic == 0 ? 28 : 2);  // of 16 blocks in the end, and of 9
  }
  const auto waits = [&] { return scene.stage() == "waits for room in the replicas"; };
  for (int event = 0; event < 6'000 && !waits(); ++event) {
    if (event % 3 == 2) {
      scene.ready();
    } else {
      scene.work(event % 3);
    }
  }
  ASSERT_TRUE(waits());
  for (int topic = 10; topic < 18; ++topic) {
    scene.arrive(topic, 36, 2);
  }
  EXPECT_TRUE(scene.changing() ? scene.running()->record.together : scene.groups() == "01");
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1");
}

// Bursts of requests at random: replicas group by layers while KV is short and part after it, and
// every answer is right.
TEST(Dropping, BurstsAreServedByGroupsThatPartAfterwards) {
  int together = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int replicas = 2 + static_cast<int>(seed % 3);
    GroupScene scene({.replicas = replicas, .steps_at_once = 2, .drop = DropPolicy::kPaper});
    for (int event = 0; event < 3'000; ++event) {
      const int dice = below(400);
      if (dice < 1) {
        for (int burst = 0; burst < 8 * replicas; ++burst) {
          scene.arrive(below(30), 20 + below(40), 1 + below(30));
        }
      } else if (dice < 2 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 100) {
        scene.ready();
      } else if (dice < 110) {
        scene.tick();
      } else {
        scene.work(below(replicas));
      }
    }
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.groups(), std::string("0 1 2 3").substr(0, 2 * replicas - 1));
    for (const RegroupRecord& record : scene.sink.groups->history) {
      together += record.together ? 1 : 0;
      EXPECT_EQ(record.by, GroupBy::kLayers);
      EXPECT_EQ(record.failure, "");
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(together, 20);
}

}  // namespace
}  // namespace protean
