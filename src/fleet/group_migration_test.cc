// Tests requests that decode and move with their KV from and to groups.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/repetitions_for_test.h"
#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

std::int64_t adopted_with_kv(const GroupScene& scene) {
  std::int64_t sum = 0;
  for (std::int32_t replica = 0; replica < static_cast<int>(scene.fleet->size()); ++replica) {
    sum += scene.fleet->observe(ReplicaId{replica}).adopted_with_kv_total;
  }
  return sum;
}

std::string refusal_of(const Result<int>& answer) {
  return answer.ok() ? "granted" : answer.error().message;
}

void work_all(GroupScene& scene, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    for (int replica = 0; replica < static_cast<int>(scene.fleet->size()); ++replica) {
      scene.work(replica);
    }
  }
}

// From a group to a group that divides the model in the same way or in the other one, and to a
// replica alone, and back.
TEST(GroupMigration, RequestsMoveBetweenGroupsAndReplicasWhileTheyDecode) {
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    for (const GroupBy other : {GroupBy::kShards, GroupBy::kLayers}) {
      GroupScene scene({.replicas = 5, .blocks = 40});
      ASSERT_TRUE(scene.want({{0, 1}}, by).ok());
      ASSERT_TRUE(scene.want({{2, 3}}, other).ok());
      scene.settle();
      ASSERT_EQ(scene.groups(), "01 23 4");
      for (int topic = 0; topic < 9; ++topic) {
        scene.arrive(topic, 10, 40);
      }
      work_all(scene, 4);
      std::int64_t moved = 0;
      for (const auto& [from, to] : {std::pair{0, 2}, {2, 4}, {4, 0}, {2, 0}}) {
        const auto chosen = scene.fleet->migrate(ReplicaId{from}, ReplicaId{to}, 1, scene.now_ns);
        ASSERT_TRUE(chosen.ok()) << chosen.error().message;
        EXPECT_EQ(*chosen, 1) << from << " to " << to;
        moved += *chosen;
        work_all(scene, 6);
        EXPECT_EQ(adopted_with_kv(scene), moved) << from << " to " << to;
      }
      scene.settle();
      scene.expect_all_answered();
    }
  }
}

TEST(GroupMigration, AReplicaThatDoesNotServeAloneOrChangesIsRefused) {
  GroupScene scene({.replicas = 3, .blocks = 60});
  scene.arrive(1, 20, 150);
  scene.arrive(2, 20, 150);
  work_all(scene, 3);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  const auto refusal = [&](int from, int to) {
    return refusal_of(scene.fleet->migrate(ReplicaId{from}, ReplicaId{to}, 1, scene.now_ns));
  };
  EXPECT_EQ(refusal(0, 2),
            "replica 0 is joining or leaving a group: ask again when that has ended");
  EXPECT_EQ(refusal(2, 1),
            "replica 1 is joining or leaving a group: ask again when that has ended");
  for (int i = 0; i < 200 && scene.changing(); ++i) {
    scene.ready();
    work_all(scene, 1);
  }
  ASSERT_EQ(scene.groups(), "01 2");
  EXPECT_EQ(refusal(1, 2), "replica 1 serves in a group: name the group's first replica");
  const auto chosen = [&] {
    return scene.fleet->migrate(ReplicaId{0}, ReplicaId{2}, 1, scene.now_ns).value();
  };
  EXPECT_EQ(chosen(), 0) << "blocks have other ids from the group's first step on";
  work_all(scene, 3);
  EXPECT_EQ(chosen(), 1);
  scene.settle();
  scene.expect_all_answered();
}

// Their devices come to what parts them before their next step.
TEST(GroupMigration, ReplicasThatHaveJustPartedGiveNoRequestBeforeTheirNextStep) {
  GroupScene scene({.replicas = 3, .blocks = 60});
  for (int topic = 0; topic < 3; ++topic) {
    scene.arrive(topic, 20, 150);
  }
  work_all(scene, 3);
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  for (int i = 0; i < 200 && scene.changing(); ++i) {
    scene.ready();
    work_all(scene, 1);
  }
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  for (int i = 0; i < 600 && scene.changing(); ++i) {
    scene.ready();
    scene.work(i % 2);
  }
  ASSERT_EQ(scene.groups(), "0 1 2");
  const auto chosen = [&] {
    return scene.fleet->migrate(ReplicaId{0}, ReplicaId{2}, 1, scene.now_ns).value();
  };
  EXPECT_EQ(chosen(), 0);
  work_all(scene, 3);
  EXPECT_EQ(chosen(), 1);
  scene.settle();
  scene.expect_all_answered();
}

// Forms do not change, so nothing but the migration keeps the group together.
TEST(GroupMigration, AGroupPartsOnceItsRequestsHaveMoved) {
  GroupScene scene({.replicas = 3, .blocks = 60, .morphs = false});
  ASSERT_TRUE(scene.want({{0, 1}}).ok());
  scene.settle();
  for (int topic = 0; topic < 3; ++topic) {
    scene.arrive(topic, 20, 40);
  }
  work_all(scene, 3);
  ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{2}, 1, scene.now_ns).value(), 1);
  ASSERT_TRUE(scene.want({{0}, {1}}).ok());
  ASSERT_TRUE(scene.changing());
  EXPECT_EQ(scene.running()->waits_for,
            "the group is still moving requests to or from another replica");
  scene.settle();
  EXPECT_EQ(scene.groups(), "0 1 2");
  EXPECT_EQ(adopted_with_kv(scene), 1);
  scene.expect_all_answered();
}

// The copy is in its first stage, waits for a step, or is in its last stage, and the group parts.
TEST(GroupMigration, ARequestThatIsCancelledOnItsWayLeavesNothingBehind) {
  for (int after = 0; after < 8; ++after) {
    GroupScene scene({.replicas = 3, .blocks = 40});
    ASSERT_TRUE(scene.want({{0, 1}}, GroupBy::kLayers).ok());
    scene.settle();
    scene.arrive(1, 90, 40);
    ASSERT_EQ(scene.fleet->observe(ReplicaId{0}).running, 1);
    work_all(scene, 5);
    ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{2}, 1, scene.now_ns).value(), 1);
    for (int i = 0; i < after; ++i) {
      scene.work(i % 2 * 2);
    }
    scene.send(Cancel{RequestId{1}});
    ASSERT_TRUE(scene.want({{0}, {1}}).ok());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1 2") << after;
    scene.expect_all_answered();
  }
}

// Blocks that a group of lower precision has computed serve no prompt of another replica.
TEST(GroupMigration, KvOfAnotherPrecisionIsNotReused) {
  for (const bool lowered : {false, true}) {
    GroupScene scene(3);
    FormWish wish{.layers = scene.form.layer_precision};
    if (lowered) {
      wish.layers.front().mlp = Precision::kBf16;
    }
    for (const int replica : {0, 1}) {
      scene.send(WantForm{1, wish}, ReplicaId{replica});
    }
    scene.settle();
    ASSERT_TRUE(scene.want({{0, 1}}).ok());
    scene.settle();
    ASSERT_EQ(scene.groups(), "01 2");
    int topic = 0;
    while (scene.fleet->observe(ReplicaId{0}).running == 0) {
      ASSERT_LT(topic, 3);
      scene.arrive(++topic, 20, 20);
    }
    work_all(scene, 3);
    ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{2}, 1, scene.now_ns).value(), 1);
    scene.settle();
    ASSERT_EQ(scene.fleet->observe(ReplicaId{2}).adopted_with_kv_total, 1);
    scene.arrive(topic, 20, 20);
    scene.arrive(topic, 20, 20);
    EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).running, 1);
    EXPECT_EQ(scene.fleet->observe(ReplicaId{2}).running, 1);
    scene.settle();
    EXPECT_EQ(scene.fleet->observe(ReplicaId{2}).prefix_hit_tokens_total > 0, !lowered);
    scene.expect_all_answered();
  }
}

// Groups form and part at random moments while operators and the load move requests, and KV is
// short: no token is lost, repeated or different, and no block, place or request is left.
TEST(GroupMigration, MovesAndChangesOfGroupsAtRandomMomentsChangeNoToken) {
  const std::vector<std::vector<std::vector<int>>> wishes = {
      {{0, 1}}, {{2, 3}}, {{0, 1}, {2, 3}}, {{0, 1, 2, 3}}, {{0}, {1}}, {{0}, {1}, {2}, {3}}};
  std::int64_t moved = 0;
  std::int64_t moved_by_load = 0;
  std::int64_t changes = 0;
  for (int seed = 0; seed < repetitions(30); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const bool by_load = seed % 2 == 1;
    GroupScene scene({.replicas = 4,
                      .blocks = 20 + below(20),
                      .morphs = below(3) > 0,
                      .steps_at_once = 1 + below(3),
                      .migrate = by_load ? MigratePolicy::kLoad : MigratePolicy::kOff});
    for (int event = 0; event < 1'500; ++event) {
      const int dice = below(200);
      if (dice < 8) {
        scene.arrive(below(6), 1 + below(40), 1 + below(60));
      } else if (dice < 9 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 10) {
        (void)scene.want(wishes[static_cast<std::size_t>(below(static_cast<int>(wishes.size())))],
                         below(2) == 0 ? GroupBy::kLayers : GroupBy::kShards);
      } else if (dice < 20 && !by_load) {
        const ReplicaId from{below(4)};
        const ReplicaId to{below(4)};
        (void)scene.fleet->migrate(from, to, 1 + below(3), scene.now_ns);
      } else if (dice < 50) {
        scene.ready();
      } else if (dice < 54) {
        scene.tick();
      } else {
        scene.work(below(4));
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " event " << event;
    }
    (void)scene.want(wishes.back());
    scene.settle();
    EXPECT_EQ(scene.groups(), "0 1 2 3");
    scene.expect_all_answered();
    (by_load ? moved_by_load : moved) += adopted_with_kv(scene);
    changes += scene.sink.groups->together_total;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(moved, repetitions(100));
  EXPECT_GT(moved_by_load, repetitions(5));
  EXPECT_GT(changes, repetitions(30));
}

}  // namespace
}  // namespace protean
