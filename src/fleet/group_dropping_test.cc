// Tests when `--drop` asks for groups, without a fleet.

#include "fleet/group_dropping.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

using Outcome = GroupDropping::Outcome;

constexpr std::int64_t kDroppingBlocks = 48;

// Four replicas. Their engines are asked and get nothing to do.
struct DroppingScene {
  explicit DroppingScene(bool groupable = true)
      : grouping({.devices = groupable ? &devices : nullptr,
                  .spec = group_spec(),
                  .budget = budget,
                  .form = form,
                  .wide_engine = [this](const Form& of) { return group_engine(of, budget, true); }},
                 stations, sink) {
    for (std::size_t i = 0; i < stations.size(); ++i) {
      EngineConfig config = group_engine(form, budget, true);
      config.replica = ReplicaId{static_cast<std::int32_t>(i)};
      config.morph->bounds.ladder.push_back(Precision::kBf16);
      config.morph->ids_after = static_cast<std::uint64_t>(i) << 16;
      stations[i].executor = std::make_unique<HomeExecutor>(devices.executor(i));
      stations[i].engine = std::make_unique<Engine>(config, *stations[i].executor, sink);
      seen[i] = stations[i].engine->observe();
    }
  }
  // All KV is in use, and each replica has a queued request that needs `awaited` blocks.
  void fill(std::int64_t awaited) {
    for (Observation& one : seen) {
      one.kv_blocks_used = one.kv_blocks;
      one.kv_blocks_awaited = awaited;
      one.waiting = awaited > 0 ? 1 : 0;
    }
  }

  GroupSink sink;
  Form form = group_form(kDroppingBlocks);
  PageBudget budget = GroupScene::budget_of(form);
  GroupedDevices devices{std::vector(4, form), budget};
  std::vector<Station> stations{4};
  std::vector<Observation> seen{4};
  Grouping grouping;
  GroupDropping dropping{grouping, stations, seen};
};

TEST(GroupDropping, AsksForGroupsOnlyIfQueuedRequestsLackKv) {
  DroppingScene scene;
  EXPECT_EQ(scene.dropping.drop_or_restore(true, 1), Outcome::kNothingToAsk);
  scene.fill(0);
  EXPECT_EQ(scene.dropping.drop_or_restore(true, 2), Outcome::kNothingToAsk);
  scene.seen[3].kv_blocks_awaited = 10;
  scene.seen[3].waiting = 1;
  EXPECT_EQ(scene.dropping.drop_or_restore(false, 3), Outcome::kNothingToAsk);
  EXPECT_FALSE(scene.grouping.changes(ReplicaId{0})) << "it may not ask";
  EXPECT_EQ(scene.dropping.drop_or_restore(true, 4), Outcome::kAsked);
  EXPECT_EQ(scene.grouping.changing(ReplicaId{0}), (std::vector{ReplicaId{0}, ReplicaId{1}}));
  EXPECT_FALSE(scene.grouping.changes(ReplicaId{2})) << "one group frees what is lacking";
  EXPECT_EQ(scene.dropping.drop_or_restore(true, 5), Outcome::kNothingToAsk);
  EXPECT_FALSE(scene.grouping.changes(ReplicaId{2})) << "what the group will have suffices";
}

TEST(GroupDropping, AReplicaAtALowerPrecisionDropsLayersToo) {
  DroppingScene scene;
  FormWish wish{.layers = scene.form.layer_precision};
  wish.layers.front().mlp = Precision::kBf16;
  scene.stations[1].engine->handle({1, WantForm{1, wish}, ReplicaId{1}});
  for (int round = 0; round < 10; ++round) {
    if (!scene.devices.preparing.empty()) {
      auto [replica, ready] = scene.devices.ready(0, std::nullopt);
      scene.stations[1].engine->handle({1, std::move(ready), replica});
    }
    for (auto& [replica, what] : scene.devices.work(ReplicaId{1})) {
      scene.stations[1].engine->handle({1, std::move(what), replica});
    }
  }
  ASSERT_TRUE(scene.stations[1].engine->form_at_rest());
  ASSERT_NE(scene.stations[1].engine->form()->layer_precision, scene.form.layer_precision);
  scene.fill(1);
  EXPECT_EQ(scene.dropping.drop_or_restore(true, 2), Outcome::kAsked);
  EXPECT_EQ(scene.grouping.changing(ReplicaId{0}), (std::vector{ReplicaId{0}, ReplicaId{1}}));
}

TEST(GroupDropping, AVoteAsksForAllReplicas) {
  DroppingScene scene;
  EXPECT_EQ(scene.dropping.vote(kNsPerS), Outcome::kNothingToAsk);
  scene.fill(10);
  EXPECT_EQ(scene.dropping.vote(2 * kNsPerS), Outcome::kAsked);
  EXPECT_TRUE(scene.grouping.changes(ReplicaId{0}));
  EXPECT_TRUE(scene.grouping.changes(ReplicaId{2}));
}

TEST(GroupDropping, WhatCannotBeHadIsRefused) {
  DroppingScene scene(false);
  scene.fill(10);
  EXPECT_EQ(scene.dropping.drop_or_restore(true, kNsPerS), Outcome::kRefused);
  EXPECT_EQ(scene.dropping.vote(kNsPerS), Outcome::kRefused);
}

}  // namespace
}  // namespace protean
