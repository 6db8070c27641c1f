// Replicas of unequal memory serve with the KV that each has, and divide layers by their memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

constexpr std::int64_t kLargeBlocks = 60;
constexpr std::int64_t kSmallBlocks = 12;

GroupScene::Options of_unequal_memory(bool small_first) {
  return {.replicas = 2,
          .blocks = kLargeBlocks,
          .own_blocks =
              small_first ? std::vector{kSmallBlocks} : std::vector{kLargeBlocks, kSmallBlocks}};
}

int layers_on(const Holding& holding) {
  return static_cast<int>(std::ranges::count_if(
      holding.layers, [](const Holding::Layer& layer) { return !layer.empty(); }));
}

TEST(UnequalMemory, AReplicaServesWithTheKvThatItHas) {
  GroupScene scene(of_unequal_memory(true));
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).kv_blocks, kSmallBlocks);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).kv_blocks, kLargeBlocks);
  scene.arrive(0, 100, 40);  // too long for the first one
  for (int topic = 1; topic < 6; ++topic) {
    scene.arrive(topic, 20, 20);
  }
  scene.settle();
  scene.expect_all_answered();
  EXPECT_FALSE(scene.sink.seen.at(RequestId{1}).refused.has_value());
}

// The device of less memory has no room for two of the three layers with the KV of both replicas.
TEST(UnequalMemory, ReplicasBecomeOneOfStagesByTheirMemoryAndPart) {
  for (const bool small_first : {false, true}) {
    GroupScene scene(of_unequal_memory(small_first));
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 40);
    }
    scene.work(0);
    scene.work(1);
    const auto changes = scene.want({{0, 1}}, GroupBy::kLayers);
    ASSERT_TRUE(changes.ok()) << changes.error().message;
    scene.settle();
    ASSERT_EQ(scene.groups(), "01");
    const Form& wide = *scene.sink.groups->groups.front().form;
    EXPECT_EQ(layers_on(wide.group[small_first ? 0 : 1]), 1);
    EXPECT_EQ(layers_on(wide.group[small_first ? 1 : 0]), 2);
    EXPECT_EQ(scene.sink.groups->history.back().weight_bytes, 0) << "each keeps layers that it has";
    EXPECT_GE(scene.fleet->observe(ReplicaId{0}).kv_blocks, kSmallBlocks + kLargeBlocks);
    for (int topic = 0; topic < 6; ++topic) {
      scene.arrive(topic, 20, 60);
    }
    scene.work(0);
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1");
    EXPECT_EQ(scene.fleet->observe(ReplicaId{small_first ? 0 : 1}).kv_blocks, kSmallBlocks);
    EXPECT_EQ(scene.fleet->observe(ReplicaId{small_first ? 1 : 0}).kv_blocks, kLargeBlocks);
    EXPECT_EQ(scene.sink.groups->failures_total, 0);
    scene.expect_all_answered();
  }
}

TEST(UnequalMemory, APipelineAndAReplicaBecomeOne) {
  for (const int large : {0, 1, 2}) {
    std::vector<std::int64_t> blocks(3, kSmallBlocks);
    blocks[static_cast<std::size_t>(large)] = kLargeBlocks;
    GroupScene scene({.replicas = 3, .blocks = kLargeBlocks, .own_blocks = blocks});
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.settle();
    for (int topic = 0; topic < 6; ++topic) {
      scene.arrive(topic, 20, 30);
    }
    const auto changes = scene.want({{0, 1, 2}}, GroupBy::kLayers);
    ASSERT_TRUE(changes.ok()) << changes.error().message;
    scene.settle();
    EXPECT_EQ(scene.groups(), "012");
    ASSERT_TRUE(scene.want({{0}, {1}, {2}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1 2");
    EXPECT_EQ(scene.sink.groups->failures_total, 0);
    scene.expect_all_answered();
  }
}

TEST(UnequalMemory, WhileGroupsChangeARefusalIsForNow) {
  GroupScene scene(of_unequal_memory(true));
  ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  ASSERT_TRUE(scene.changing());
  const auto refused = scene.want({{0, 1}}, GroupBy::kShards);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message.find("ask again when they have"), std::string::npos)
      << refused.error().message;
  scene.settle();
  EXPECT_EQ(scene.groups(), "01") << "what was asked for before stays";
}

TEST(UnequalMemory, NoGroupByShardsForms) {
  GroupScene scene(of_unequal_memory(true));
  const auto refused = scene.want({{0, 1}}, GroupBy::kShards);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "these groups cannot be had: replicas whose devices have unequal memory divide no "
            "layers by shards: group them by layers");
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(scene.changing());
}

TEST(UnequalMemory, ACounterOrderTurnsAtAnyMoment) {
  for (int moment = 0; moment < 60; ++moment) {
    GroupScene scene(of_unequal_memory(moment % 4 < 2));
    for (int topic = 0; topic < 4; ++topic) {
      scene.arrive(topic, 20, 24);
    }
    const std::vector<std::vector<int>> group = {{0, 1}};
    const std::vector<std::vector<int>> alone = {{0}, {1}};
    const bool from_group = moment % 2 == 1;
    if (from_group) {
      ASSERT_TRUE(scene.want(group, GroupBy::kLayers).ok());
      for (int i = 0; i < 100 && scene.changing(); ++i) {
        scene.ready();
        scene.work(0);
        scene.work(1);
      }
    }
    ASSERT_TRUE(scene.want(from_group ? alone : group, GroupBy::kLayers).ok());
    scene.go_on_to(moment);
    ASSERT_TRUE(scene.want(from_group ? group : alone, GroupBy::kLayers).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), from_group ? "01" : "0 1") << moment;
    scene.expect_all_answered();
  }
}

// Bursts of requests under `--drop`: replicas become one while KV is short and part after it.
TEST(UnequalMemory, APolicyDropsLayersOfReplicas) {
  for (const DropPolicy drop : {DropPolicy::kPaper, DropPolicy::kReleased}) {
    int together = 0;
    for (unsigned seed = 0; seed < 6; ++seed) {
      std::mt19937 random(seed);
      const auto below = [&](int limit) {
        return static_cast<int>(random() % static_cast<unsigned>(limit));
      };
      GroupScene::Options options = of_unequal_memory(seed % 2 == 0);
      options.drop = drop;
      GroupScene scene(options);
      for (int event = 0; event < 2'000; ++event) {
        const int dice = below(400);
        if (dice < 1) {
          for (int burst = 0; burst < 30; ++burst) {
            scene.arrive(below(30), 20 + below(20), 1 + below(8));
          }
        } else if (dice < 100) {
          scene.ready();
        } else if (dice < 110) {
          scene.tick();
        } else {
          scene.work(below(2));
        }
      }
      scene.settle();
      scene.expect_all_answered();
      for (const RegroupRecord& record : scene.sink.groups->history) {
        together += record.together ? 1 : 0;
        EXPECT_EQ(record.by, GroupBy::kLayers);
        EXPECT_EQ(record.failure, "");
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    }
    EXPECT_GT(together, 0);
  }
}

// Each device would have to take more KV of the other than it has room for before it gives any
// back.
TEST(UnequalMemory, APairWithoutRoomHidesNoOtherPairFromThePolicy) {
  GroupScene scene({.replicas = 3,
                    .blocks = 100,
                    .own_blocks = {100, 60, 60},
                    .steps_at_once = 2,
                    .drop = DropPolicy::kJoint,
                    .step_cost = {.fixed_us = 50'000}});
  ASSERT_FALSE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
  for (int topic = 0; topic < 90; ++topic) {
    scene.arrive(topic, 80, 80);  // one fills a replica
  }
  for (int round = 0; round < 5'000 && scene.groups() != "0 12"; ++round) {
    scene.now_ns += 25 * kNsPerMs;
    scene.ready();
    for (int replica = 0; replica < 3; ++replica) {
      scene.work(replica);
    }
    scene.tick();
  }
  EXPECT_EQ(scene.groups(), "0 12");
  scene.settle();
  scene.expect_all_answered();
}

}  // namespace
}  // namespace protean
