// Tests what `--scale` decides about requests, without a fleet.

#include "fleet/group_scaling.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "fleet/group_scene_for_test.h"

namespace protean {
namespace {

constexpr std::size_t kReplicas = 4;

// Replicas of 24 KV blocks of 4 tokens. Their engines are asked and get nothing to do.
struct ScalingScene {
  explicit ScalingScene(ScalePolicy scale, std::vector<int> longest_tokens = {})
      : grouping({.devices = &devices,
                  .spec = group_spec(),
                  .budget = budget,
                  .form = form,
                  .scale = scale,
                  .longest_tokens = std::move(longest_tokens)},
                 stations, sink) {
    for (std::size_t i = 0; i < kReplicas; ++i) {
      stations[i].executor = std::make_unique<HomeExecutor>(devices.executor(i));
      stations[i].engine =
          std::make_unique<Engine>(group_engine(form, budget, true), *stations[i].executor, sink);
      candidates.views.emplace_back();
      candidates.replicas.push_back(i);
    }
  }
  void refuse(std::size_t candidate, ErrorCode code) {
    candidates.views[candidate].expected.refusal = make_error(code, "refused");
  }
  static Request request(std::size_t prompt, int max_tokens) {
    Request made;
    made.prompt.assign(prompt, 7);
    made.max_tokens = max_tokens;
    return made;
  }

  GroupSink sink;
  Form form = group_form(24);
  PageBudget budget = GroupScene::budget_of(form);
  GroupedDevices devices{std::vector(kReplicas, form), budget};
  std::vector<Station> stations{kReplicas};
  std::vector<Observation> seen{kReplicas};
  Grouping grouping;
  FormedGroups formed;
  GroupScaling scaling{grouping, stations, seen, formed};
  RouteCandidates candidates;
};

TEST(GroupScaling, ALimitOfTokensLimitsGroups) {
  const ScalingScene off(ScalePolicy::kOff);
  EXPECT_FALSE(off.scaling.forms_groups());
  EXPECT_EQ(off.scaling.most_blocks(), 24);

  const ScalingScene scene(ScalePolicy::kPaper, {80, 120, 160});
  EXPECT_TRUE(scene.scaling.forms_groups());
  EXPECT_EQ(scene.scaling.most_blocks(), 40);
  EXPECT_EQ(scene.scaling.blocks_needed(ScalingScene::request(5, 4)), 2)
      << "not for the last token";
  EXPECT_TRUE(scene.scaling.could_grow_for(ScalingScene::request(150, 10)));
  EXPECT_FALSE(scene.scaling.could_grow_for(ScalingScene::request(151, 10)));
}

TEST(GroupScaling, ARequestWaitsIfItIsTooLongForAllCandidates) {
  ScalingScene scene(ScalePolicy::kPaper);
  const Request longer = ScalingScene::request(120, 10);
  for (std::size_t i = 0; i < kReplicas; ++i) {
    EXPECT_FALSE(scene.scaling.must_wait(longer, scene.candidates, false));
    scene.refuse(i, ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(scene.scaling.must_wait(longer, scene.candidates, false));
  EXPECT_FALSE(scene.scaling.must_wait(ScalingScene::request(2'000, 10), scene.candidates, false))
      << "no group could hold it";
  scene.refuse(2, ErrorCode::kExhausted);
  EXPECT_FALSE(scene.scaling.must_wait(longer, scene.candidates, false)) << "one is only full";
}

TEST(GroupScaling, LongRequestsWaitBehindOthersIfGroupsDoNotGrow) {
  ScalingScene scene(ScalePolicy::kLayers);
  EXPECT_TRUE(scene.scaling.must_wait(ScalingScene::request(120, 10), scene.candidates, true));
  EXPECT_FALSE(scene.scaling.must_wait(ScalingScene::request(20, 10), scene.candidates, true));
}

TEST(GroupScaling, NeighboursAreChosenWhateverTheyHold) {
  ScalingScene scene(ScalePolicy::kNeighbours);
  const Request longer = ScalingScene::request(120, 10);
  scene.refuse(1, ErrorCode::kInvalidArgument);
  scene.refuse(3, ErrorCode::kExhausted);
  EXPECT_FALSE(scene.scaling.must_wait(longer, scene.candidates, false));
  EXPECT_EQ(scene.scaling.overlook_length(longer, scene.candidates), std::vector<std::size_t>{1});
  EXPECT_FALSE(scene.candidates.views[1].expected.refusal);
  EXPECT_TRUE(scene.candidates.views[3].expected.refusal);
}

TEST(FormedGroups, AGroupThatAnOperatorNamesIsTheOperators) {
  FormedGroups formed;
  formed.add({ReplicaId{2}, ReplicaId{0}}, {.since_ns = 5});
  formed.add({ReplicaId{1}, ReplicaId{3}}, {.since_ns = 6, .for_long = true});
  ASSERT_NE(formed.find(ReplicaId{0}, 2), nullptr) << "the first replica names it";
  EXPECT_EQ(formed.find(ReplicaId{0}, 4), nullptr);
  formed.forget({.groups = {{ReplicaId{0}}}});
  EXPECT_EQ(formed.find(ReplicaId{0}, 2), nullptr);
  ASSERT_NE(formed.find(ReplicaId{1}, 2), nullptr);
  EXPECT_TRUE(formed.find(ReplicaId{1}, 2)->for_long);
}

TEST(FormedGroups, AGroupThatHasPartedIsForgottenWhileOthersForm) {
  ScalingScene scene(ScalePolicy::kPaper);
  const GroupWish wish{.groups = {{ReplicaId{0}, ReplicaId{1}}}};
  ASSERT_TRUE(scene.grouping.want(wish, "a test", true, 1).ok());
  scene.formed.add({ReplicaId{0}, ReplicaId{1}}, {});
  scene.formed.add({ReplicaId{2}, ReplicaId{3}}, {});
  ASSERT_TRUE(scene.grouping.busy());
  scene.formed.forget_parted(scene.grouping);
  EXPECT_NE(scene.formed.find(ReplicaId{0}, 2), nullptr) << "it forms";
  EXPECT_EQ(scene.formed.find(ReplicaId{2}, 2), nullptr);
}

}  // namespace
}  // namespace protean
