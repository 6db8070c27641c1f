#include "control/fleet_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "control/plan_regroup.h"

namespace protean {
namespace {

constexpr WayOutlook kLate = {.cost = 20, .most_cost = 40, .late = 40, .serves = true};
constexpr WayOutlook kInTime = {.cost = 0, .most_cost = 0, .late = 0, .serves = true};

TEST(FleetChoice, AGroupIsChosenIfItSavesMoreThanALowerPrecision) {
  const WayOutlook slower = {.cost = 5, .most_cost = 10, .late = 10, .serves = true};
  const std::vector<WayOutlook> groups = {slower, kInTime};
  EXPECT_EQ(choose_group(kLate, {}, groups), 1U);
  EXPECT_EQ(choose_group(kLate, std::array{slower}, groups), 1U);
  EXPECT_EQ(choose_group(kLate, std::array{kInTime}, groups), 1U) << "a group loses no quality";
  EXPECT_EQ(choose_group(kLate, std::array{kInTime}, std::array{slower}), std::nullopt);
}

TEST(FleetChoice, NothingChangesIfNoGroupSavesARequestAndAFifth) {
  const WayOutlook little = {.cost = 17, .most_cost = 17, .late = 17, .serves = true};
  EXPECT_EQ(choose_group(kLate, {}, std::array{little}), std::nullopt);
  const WayOutlook half_a_request = {.cost = 0.5, .most_cost = 0.5, .late = 0.5, .serves = true};
  EXPECT_EQ(choose_group(half_a_request, {}, std::array{kInTime}), std::nullopt);
}

TEST(FleetChoice, TheOnlyWayThatHoldsTheLongestSequenceIsChosen) {
  WayOutlook small = kInTime;
  small.serves = false;
  EXPECT_EQ(choose_group(small, {}, std::array{kLate}), 0U);
  EXPECT_EQ(choose_group(kLate, {}, std::array{small}), std::nullopt);
}

TEST(FleetChoice, AGroupPartsOnceItIsNotNeededAndHasLasted) {
  const Parting idle = {
      .group = kInTime, .parts = kInTime, .returns = 0, .lasted_s = 10, .there_and_back_s = 2};
  EXPECT_TRUE(pays(idle));
  Parting young = idle;
  young.lasted_s = 1;
  EXPECT_FALSE(pays(young));
  Parting wanted = idle;
  wanted.returns = 1;
  EXPECT_FALSE(pays(wanted)) << "the next long request would wait for a group again";
  Parting needed = idle;
  needed.parts = kLate;
  EXPECT_FALSE(pays(needed));
  Parting harms = idle;
  harms.group = kLate;
  EXPECT_TRUE(pays(harms));
  harms.parts.serves = false;
  EXPECT_FALSE(pays(harms));
}

TEST(FleetChoice, AShareOfASumIsTheMeanReplica) {
  const Load busy = {.decoding = 6, .context_tokens = 600, .left_tokens = 10, .largest_tokens = 90};
  const Load idle = {.largest_tokens = 20};
  const Load sum = sum_of(std::array{busy, idle}, {.per_s = 4, .most_per_s = 8});
  const Load mean = share_of(sum, 0.5);
  EXPECT_EQ(mean.decoding, 3);
  EXPECT_EQ(mean.context_tokens, 300);
  EXPECT_EQ(mean.left_tokens, 10);
  EXPECT_EQ(mean.largest_tokens, 90);
  EXPECT_EQ(mean.arrivals.per_s, 2);
  EXPECT_EQ(mean.arrivals.most_per_s, 4);
}

// The engine of a group by layers and the simulator must agree on what its steps take.
TEST(FleetChoice, AStepOfAGroupByLayersCostsWhatItsFirstStageTakes) {
  ModelSpec spec;
  spec.layers = 8;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 300;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  StepCost alone;
  alone.fixed_us = 50;
  alone.token_us = 3;
  alone.context_token_us = 0.2;
  alone.sequence_us = 7;
  alone.kv_token_us = 0.5;
  alone.far_kv_token_us = 0.3;
  alone.near_kv_tokens = 100;
  for (LayersCost& layers : alone.layers) {
    layers = {.step_us = 1000, .token_us = 10, .more_token_us = 20, .tile_us = 5};
  }
  GroupCost cost;
  cost.shared.fill(alone);
  const Form home = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 8});
  const Result<Form> wide = divided_form(home, 2, GroupBy::kLayers);
  ASSERT_TRUE(wide.ok()) << wide.error().message;
  const std::vector<Stretch> stages = stretches_of(spec, *wide);
  ASSERT_EQ(stages.size(), 2U);
  const StepPrecision precision = step_precision(spec, home);
  const StepWork work = {.tokens = 40, .sequences = 12, .context_tokens = 900, .kv_tokens = 500};
  EXPECT_NEAR(predict_us(cost_of(cost, spec, *wide), work, precision),
              predict_us(alone, work, precision, stages.front().part), 1e-9);
}

}  // namespace
}  // namespace protean
