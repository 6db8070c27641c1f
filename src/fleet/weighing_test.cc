// Tests fleets whose groups are formed and parted by what they are predicted to save.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/repetitions_for_test.h"
#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

// Lets time pass until no policy's group is left.
void let_groups_part(GroupScene& scene, const std::string& alone) {
  for (int round = 0; round < 5'000 && scene.groups() != alone && scene.tick(); ++round) {
    scene.settle();
  }
}

// Short and long requests and bursts at random, while a few preparations fail: each accepted
// request ends once, with the right tokens, and in the end all replicas are alone.
TEST(Weighing, RandomRequestsAreServedWithoutAnOperator) {
  int by_shards = 0;
  int by_layers = 0;
  int wide = 0;
  for (int seed = 0; seed < repetitions(24); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int replicas = seed % 2 == 0 ? 2 : 4;
    GroupScene scene({.replicas = replicas,
                      .blocks = 20,
                      .steps_at_once = 2,
                      .scale = seed % 3 == 1 ? ScalePolicy::kOff : ScalePolicy::kJoint,
                      .drop = seed % 3 == 0 ? DropPolicy::kOff : DropPolicy::kJoint,
                      .step_cost = {.fixed_us = 50'000}});
    const bool holds_long = seed % 3 != 1;
    int no_pages = 3;  // fewer than the failed attempts that end a request
    for (int event = 0; event < 2'000; ++event) {
      scene.now_ns += below(20) * kNsPerMs;
      const int dice = below(400);
      if (dice < 1) {
        for (int burst = 0; burst < 8 * replicas; ++burst) {
          scene.arrive(below(30), 20 + below(30), 1 + below(30));
        }
      } else if (dice < 8) {
        scene.arrive(below(6), 1 + below(40), 1 + below(30));
      } else if (dice < 9 && holds_long) {
        scene.arrive(below(6), 70 + below(60), 1 + below(10));
      } else if (dice < 10 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 100) {
        const bool fails = no_pages > 0 && below(30) == 0;
        scene.ready(0,
                    fails ? std::optional(Error{ErrorCode::kExhausted, "no page"}) : std::nullopt);
        no_pages -= fails ? 1 : 0;
      } else if (dice < 120) {
        scene.tick();
      } else {
        scene.work(below(replicas));
      }
    }
    scene.settle();
    scene.expect_all_answered();
    const std::string alone = replicas == 2 ? "0 1" : "0 1 2 3";
    let_groups_part(scene, alone);
    EXPECT_EQ(scene.groups(), alone);
    for (const RegroupRecord& record : scene.sink.groups->history) {
      ++(record.by == GroupBy::kShards ? by_shards : by_layers);
      wide += record.replicas.back().value - record.replicas.front().value > 1 ? 1 : 0;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(by_shards, repetitions(10));
  EXPECT_GT(by_layers, repetitions(5));
  EXPECT_GT(wide, 0);
}

// The client of the only long request gives up during its prompt. Nothing happens in the group from
// then on, which parts all the same.
TEST(Weighing, AnIdleGroupParts) {
  GroupScene scene({.replicas = 2, .blocks = 20, .scale = ScalePolicy::kJoint});
  scene.arrive(5, 120, 10);
  for (int round = 0; round < 1'000 && scene.groups() != "01"; ++round) {
    scene.ready();
    scene.work(0);
    scene.work(1);
    scene.tick();
  }
  ASSERT_EQ(scene.groups(), "01");
  scene.send(Cancel{RequestId{1}});
  scene.settle();
  let_groups_part(scene, "0 1");
  EXPECT_EQ(scene.groups(), "0 1");
  for (int round = 0; round < 100 && scene.tick(); ++round) {
  }
  EXPECT_EQ(scene.fleet->next_deadline_ns(), std::nullopt) << "an idle fleet is left alone";
}

// A group by layers cannot grow for requests that it does not hold, so it does not stay for them.
TEST(Weighing, AGroupByLayersPartsAlthoughLongerRequestsArrive) {
  GroupScene scene({.replicas = 2,
                    .blocks = 20,
                    .steps_at_once = 2,
                    .scale = ScalePolicy::kPaper,
                    .drop = DropPolicy::kJoint,
                    .step_cost = {.fixed_us = 50'000}});
  for (int i = 0; i < 40; ++i) {
    scene.arrive(i, 30, 20);
  }
  for (int round = 0; round < 5'000 && scene.groups() != "01"; ++round) {
    scene.now_ns += 25 * kNsPerMs;
    scene.ready();
    scene.work(0);
    scene.work(1);
    scene.tick();
  }
  ASSERT_EQ(scene.groups(), "01");
  scene.settle();
  ASSERT_LT(scene.fleet->observe(ReplicaId{0}).kv_blocks, 90);
  scene.arrive(50, 359, 2);  // 90 blocks, and a group by shards has more
  EXPECT_TRUE(scene.sink.seen.at(RequestId{41}).accepted);
  const auto parted = [&] {
    return std::ranges::any_of(scene.sink.groups->history, [](const RegroupRecord& record) {
      return record.by == GroupBy::kLayers && !record.together;
    });
  };
  for (int round = 0; round < 5'000 && !parted() && scene.tick(); ++round) {
    if (round % 100 == 99) {
      scene.arrive(50, 359, 2);
    }
    scene.settle();
  }
  EXPECT_TRUE(parted());
}

// The load falls while three requests run of which two homes hold two. The order to part waits for
// the end of one, and is taken back when the load returns.
TEST(Weighing, AGroupThatWaitsToPartStaysIfTheLoadReturns) {
  GroupScene scene({.replicas = 2,
                    .blocks = 20,
                    .steps_at_once = 2,
                    .drop = DropPolicy::kJoint,
                    .step_cost = {.fixed_us = 50'000}});
  const auto burst = [&] {
    for (int i = 0; i < 40; ++i) {
      scene.arrive(i, 30, 20);
    }
  };
  const auto work = [&] {
    scene.now_ns += 25 * kNsPerMs;
    scene.ready();
    scene.work(0);
    scene.work(1);
    scene.tick();
  };
  burst();
  for (int round = 0; round < 5'000 && scene.groups() != "01"; ++round) {
    work();
  }
  ASSERT_EQ(scene.groups(), "01");
  scene.settle();
  const auto waits = [&] {
    const auto running = scene.running();
    return running && !running->record.together && running->stage.find("room") != std::string::npos;
  };
  for (int round = 0; round < 5'000 && !waits(); ++round) {
    if (scene.fleet->idle()) {
      for (int topic = 0; topic < 3; ++topic) {
        scene.arrive(50 + topic, 30, 25);
      }
    }
    work();
  }
  ASSERT_TRUE(waits());
  burst();
  for (int round = 0; round < 100 && scene.changing(); ++round) {
    work();
  }
  EXPECT_EQ(scene.groups(), "01");
  EXPECT_EQ(scene.sink.groups->history.back().reason,
            "turned back: more requests would be late without the group");
  EXPECT_EQ(scene.sink.groups->failures_total, 0);
  scene.settle();
  let_groups_part(scene, "0 1");
  scene.expect_all_answered();
  EXPECT_EQ(scene.groups(), "0 1");
}

}  // namespace
}  // namespace protean
