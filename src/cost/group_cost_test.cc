#include "cost/group_cost.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace protean {
namespace {

// The engine of a group by layers and the simulator must agree on what its steps take.
TEST(GroupCost, AStepOfAGroupByLayersCostsWhatItsFirstStageTakes) {
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
  const std::array devices = {DeviceId{0}, DeviceId{1}};
  const Form wide = divide(home, even_division(spec.layers, 1, 2), devices);
  const std::vector<Stretch> stages = stretches_of(spec, wide);
  ASSERT_EQ(stages.size(), 2U);
  const StepPrecision precision = step_precision(spec, home);
  const StepWork work = {.tokens = 40, .sequences = 12, .context_tokens = 900, .kv_tokens = 500};
  EXPECT_NEAR(predict_us(cost_of(cost, spec, wide), work, precision),
              predict_us(alone, work, precision, stages.front().part), 1e-9);
}

}  // namespace
}  // namespace protean
