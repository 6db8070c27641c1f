// Tests executors that succeed that of a fleet's only replica while requests run.

#include "fleet/succession.h"

#include <gtest/gtest.h>

#include <random>

#include "base/repetitions_for_test.h"
#include "fleet/succession_scene_for_test.h"

namespace protean {
namespace {

using Succeeding = SuccessionScene::Options;

TEST(Succession, ALongAnswerGoesOnWhileItsKvIsCopied) {
  SuccessionScene scene({.blocks = 300});
  scene.arrive(1, 700, 80);
  scene.serve(30);
  ASSERT_TRUE(scene.succeed({.blocks = 300}).ok());
  const std::size_t before = scene.seen(1).tokens.size();
  ASSERT_GT(before, 0U);
  std::size_t last = before;
  int pauses = 0;
  while (scene.succeeds()) {
    scene.serve();
    pauses += scene.seen(1).tokens.size() == last ? 1 : 0;
    last = scene.seen(1).tokens.size();
    scene.fill();
  }
  EXPECT_TRUE(scene.ended->ok());
  EXPECT_GE(scene.copies, 4) << "176 blocks in chunks of 64, then the rest";
  EXPECT_LE(scene.next().largest_copy, 64U);
  EXPECT_LE(pauses, 1) << "for the last copy";
  EXPECT_GE(scene.seen(1).tokens.size(), before + 3);
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.tokens_computed(), 700 + 79) << "nothing is computed twice";
  const RequestUsage& usage = scene.seen(1).finished->usage;
  EXPECT_EQ(usage.preemptions, 0);
  EXPECT_EQ(usage.output_tokens, 80);
  EXPECT_LT(scene.seen(1).finished->times.first_token_ns, 40);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).output_tokens_total, 80);
}

TEST(Succession, PromptsInTheMiddleGoOn) {
  for (int steps = 0; steps < 8; ++steps) {
    SuccessionScene scene({});
    scene.arrive(1, 200, 5);
    scene.arrive(1, 190, 5);  // shares a prefix with the first
    scene.serve(steps);
    ASSERT_TRUE(scene.succeed({}).ok());
    scene.settle();
    EXPECT_EQ(scene.switches, 1);
    EXPECT_LT(scene.tokens_computed(), 200 + 190 + 10);
    scene.expect_all_answered();
  }
}

TEST(Succession, WhatIsCachedGoesOverUnlessItsPrecisionChanges) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    SuccessionScene scene({});
    scene.arrive(1, 40, 3);
    scene.settle();
    scene.arrive(2, 40, 30);
    scene.serve(5);
    ASSERT_TRUE(scene.succeed({.precision = precision}).ok());
    scene.settle();
    ASSERT_EQ(scene.switches, 1);
    scene.arrive(1, 40, 3);
    scene.arrive(2, 40, 3);
    scene.settle();
    const bool same = precision == Precision::kF32;
    EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).prefix_hit_tokens_total, same ? 72 : 0);
    scene.expect_all_answered();
  }
}

TEST(Succession, AnIdleReplicaIsSucceededAtOnce) {
  SuccessionScene scene({});
  ASSERT_TRUE(scene.succeed({}).ok());
  EXPECT_EQ(scene.switches, 1);
  ASSERT_TRUE(scene.ended && scene.ended->ok());
  scene.arrive(1, 40, 3);
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.next().tokens, 42);
}

TEST(Succession, TheLastSequencesAreComputedAgainIfKvIsSmaller) {
  SuccessionScene scene({});
  for (int topic = 1; topic <= 3; ++topic) {
    scene.arrive(topic, 60, 40);
  }
  scene.serve(10);
  ASSERT_EQ(scene.fleet->observe(ReplicaId{0}).running, 3);
  ASSERT_TRUE(scene.succeed({.blocks = 45}).ok());
  while (scene.succeeds()) {
    scene.serve();
    scene.fill();
  }
  ASSERT_TRUE(scene.ended->ok());
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).preemptions_total, 1);
  scene.settle();
  EXPECT_EQ(scene.seen(1).finished->usage.preemptions, 0);
  EXPECT_GE(scene.seen(3).finished->usage.preemptions, 1);
  scene.expect_all_answered();
}

TEST(Succession, MoreKvAndMorePlacesServeWhatWaits) {
  SuccessionScene scene({.blocks = 40, .sequences = 2});
  for (int topic = 1; topic <= 5; ++topic) {
    scene.arrive(topic, 50, 20);
  }
  scene.serve(6);
  EXPECT_LE(scene.fleet->observe(ReplicaId{0}).running, 2);
  ASSERT_TRUE(scene.succeed({}).ok());
  scene.settle();
  EXPECT_EQ(scene.switches, 1);
  scene.expect_all_answered();
}

TEST(Succession, SequencesWaitIfStepsTakeFewerOfThem) {
  SuccessionScene scene({});
  for (int topic = 1; topic <= 6; ++topic) {
    scene.arrive(topic, 10, 30);
  }
  scene.serve(8);
  ASSERT_EQ(scene.fleet->observe(ReplicaId{0}).running, 6);
  ASSERT_TRUE(scene.succeed({.sequences = 2}).ok());
  scene.settle();
  scene.expect_all_answered();
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).preemptions_total, 0);
}

TEST(Succession, RequestsThatCouldNeverRunThereKeepTheFormer) {
  SuccessionScene scene({});
  scene.arrive(1, 100, 50);
  scene.serve(5);
  EXPECT_FALSE(scene.succeed({.longest = 149}).ok());
  EXPECT_FALSE(scene.succeed({.blocks = 37}).ok());
  ASSERT_TRUE(scene.succeed({.blocks = 38, .longest = 150}).ok());
  scene.arrive(2, 120, 40);  // comes before the switch, and is too long
  scene.settle();
  ASSERT_TRUE(scene.ended.has_value());
  EXPECT_FALSE(scene.ended->ok());
  EXPECT_EQ(scene.switches, 0);
  scene.expect_all_answered();
}

// Begins a succession in the middle of some answers and takes so many turns.
void begin_and_take_turns(SuccessionScene& scene, int turns, TimeNs timeout_ns) {
  for (int topic = 1; topic <= 4; ++topic) {
    scene.arrive(topic, 90, 40);
  }
  scene.serve(16);
  ASSERT_TRUE(scene.succeed({.timeout_ns = timeout_ns}).ok());
  for (int i = 0; i < turns; ++i) {
    i % 2 == 0 ? scene.serve() : scene.fill();
  }
}

TEST(Succession, TheFormerGoesOnIfTheOtherFails) {
  int failed = 0;
  for (int turns = 0; turns < 12; ++turns) {
    SuccessionScene scene({});
    begin_and_take_turns(scene, turns, 0);
    if (!scene.succeeds()) {
      continue;
    }
    SuccessionDevice& other = scene.next();
    scene.send(DevicesFailed{"has lost memory"}, ReplicaId{1});
    EXPECT_TRUE(other.given_up);
    scene.settle();
    ASSERT_TRUE(scene.ended.has_value());
    EXPECT_FALSE(scene.ended->ok());
    EXPECT_EQ(other.tokens + scene.switches, 0);
    const auto failure = scene.fleet->take_failed();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->devices, std::vector{0});
    EXPECT_EQ(failure->replica, ReplicaId{1});
    scene.ended.reset();
    ASSERT_TRUE(scene.succeed({}).ok()) << "it may be tried again";
    scene.settle();
    EXPECT_EQ(scene.switches, 1);
    scene.expect_all_answered();
    EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).preemptions_total, 0);
    ++failed;
  }
  EXPECT_GE(failed, 3);
}

TEST(Succession, DevicesThatHangInACopyAreGivenUp) {
  constexpr TimeNs kCopyTimeout = 10 * kNsPerS;
  SuccessionScene scene({});
  begin_and_take_turns(scene, 1, kCopyTimeout);
  ASSERT_TRUE(scene.succeeds());
  for (int i = 0; i < 100 && scene.succeeds(); ++i) {
    scene.serve();
    const auto deadline_ns = scene.fleet->next_deadline_ns();
    ASSERT_TRUE(deadline_ns.has_value());
    scene.now_ns = std::max(scene.now_ns, *deadline_ns);
    scene.send(Tick{});
  }
  ASSERT_TRUE(scene.ended.has_value());
  EXPECT_NE(scene.ended->error().message.find("has not answered for 10 s"), std::string::npos);
  EXPECT_TRUE(scene.next().given_up);
  const auto failure = scene.fleet->take_failed();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->why, "has not answered for 10 s");
  scene.settle();
  scene.expect_all_answered();
}

TEST(Succession, IfTheFormerFailsItsRequestsAreComputedAgain) {
  int failed = 0;
  for (int turns = 0; turns < 12; ++turns) {
    SuccessionScene scene({});
    begin_and_take_turns(scene, turns, 0);
    if (!scene.succeeds()) {
      continue;
    }
    SuccessionDevice& former = scene.now();
    scene.send(DevicesFailed{"has lost memory"}, ReplicaId{0});
    EXPECT_TRUE(former.given_up);
    ASSERT_TRUE(scene.ended.has_value());
    EXPECT_TRUE(scene.ended->ok());
    const auto failure = scene.fleet->take_failed();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->replica, ReplicaId{0}) << "the former's devices have failed";
    EXPECT_EQ(failure->why, "has lost memory");
    scene.arrive(5, 20, 5);
    scene.settle();
    scene.expect_all_answered();
    EXPECT_EQ(scene.seen(1).finished->usage.output_tokens, 40);
    ++failed;
  }
  EXPECT_GE(failed, 3);
}

TEST(Succession, AMorphUnderWayEndsAndAPinDoesNotGoOver) {
  constexpr int kMost = 12;
  for (int served = 0; served <= kMost; ++served) {
    SuccessionScene scene({.morphs = true});
    scene.arrive(1, 90, 60);
    scene.serve(6);
    scene.send(WantForm{1, {.kv_blocks = 60}}, ReplicaId{0});
    ASSERT_TRUE(scene.sink.form_answer && scene.sink.form_answer->ok());
    scene.serve(served);
    ASSERT_TRUE(scene.succeed({.morphs = true}).ok());
    scene.send(WantForm{2, {.kv_blocks = 80}}, ReplicaId{0});
    EXPECT_NE(scene.sink.form_answer->error().message.find("hands its requests over"),
              std::string::npos);
    while (scene.succeeds()) {
      scene.serve();
      scene.fill();
    }
    ASSERT_TRUE(scene.ended->ok());
    EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).kv_blocks, 200);
    EXPECT_FALSE(scene.sink.forms[ReplicaId{0}].pinned);
    EXPECT_LE(scene.sink.forms[ReplicaId{0}].kv_resizes_total, 1);
    EXPECT_TRUE(served < kMost || scene.sink.forms[ReplicaId{0}].kv_resizes_total == 1)
        << "counters go on";
    scene.send(WantForm{3, {.kv_blocks = 100}}, ReplicaId{0});
    EXPECT_TRUE(scene.sink.form_answer->ok());
    scene.settle();
    EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).kv_blocks, 100);
    scene.expect_all_answered();
  }
}

TEST(Succession, OnlyOneReplicaAloneIsSucceeded) {
  GroupScene grouped(2);
  SuccessionScene other({});
  EXPECT_FALSE(grouped.fleet->succeed(other.member_of({}), ReplicaId{2}, 1).ok());
  SuccessionScene scene({});
  scene.arrive(1, 90, 20);
  scene.serve(2);
  ASSERT_TRUE(scene.succeed({}).ok());
  ASSERT_TRUE(scene.succeeds());
  EXPECT_FALSE(scene.fleet->succeed(other.member_of({}), ReplicaId{1}, 1).ok()) << "one at a time";
  scene.settle();
}

// Random arrivals, cancels, forms, failures and successions between executors of different sizes:
// no token is lost, repeated or different, and no block is left.
TEST(Succession, AtRandomMomentsNoTokenChanges) {
  std::int64_t switches = 0;
  std::int64_t failures = 0;
  std::int64_t preemptions = 0;
  std::int64_t hits = 0;
  for (int seed = 0; seed < repetitions(30); ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const auto some = [&] {
      return Succeeding{.blocks = 50 + below(100),
                        .sequences = 2 + below(6),
                        .in_flight = 1 + below(3),
                        .longest = 200,
                        .morphs = seed % 2 == 0};
    };
    SuccessionScene scene(some());
    scene.fleet->await_successor(true);
    for (int event = 0; event < 1'500; ++event) {
      const int dice = below(100);
      if (dice < 5) {
        scene.arrive(below(6), 1 + below(110), 1 + below(80));
      } else if (dice < 6 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 8 && !scene.succeeds()) {
        scene.ended.reset();
        (void)scene.succeed(some());
      } else if (dice < 9 && below(scene.succeeds() ? 3 : 12) == 0) {
        const int victim = scene.succeeds() ? below(2) : 0;
        scene.send(DevicesFailed{"has lost memory"}, ReplicaId{victim});
        ++failures;
      } else if (dice < 10) {
        scene.send(WantForm{1, {.kv_blocks = 50 + below(60)}}, ReplicaId{0});
      } else if (dice < 60) {
        scene.serve();
      } else {
        scene.fill();
      }
    }
    if (scene.now().given_up) {
      scene.ended.reset();
      ASSERT_TRUE(scene.succeed(some()).ok());
    }
    scene.settle();
    scene.expect_all_answered();
    switches += scene.switches;
    preemptions += scene.fleet->observe(ReplicaId{0}).preemptions_total;
    hits += scene.fleet->observe(ReplicaId{0}).prefix_hit_tokens_total;
  }
  EXPECT_GT(switches, repetitions(300));
  EXPECT_GT(failures, repetitions(30));
  EXPECT_GT(preemptions, repetitions(300));
  EXPECT_GT(hits, repetitions(10'000));
}

}  // namespace
}  // namespace protean
