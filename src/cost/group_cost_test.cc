#include "cost/group_cost.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cost/memory.h"

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

// Each device computes its tokens of a sequence as one device does, and reads all weights.
TEST(GroupCost, DevicesThatDivideASequenceReadAllWeights) {
  ModelSpec spec;
  spec.layers = 8;
  spec.hidden = 64;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  StepCost alone;
  alone.fixed_us = 50;
  alone.token_us = 3;
  alone.context_token_us = 0.2;
  alone.kv_token_us = 0.5;
  alone.far_kv_token_us = 0.3;
  alone.near_kv_tokens = 100;
  alone.of(Precision::kBf16) = {
      .step_us = 1000, .token_us = 10, .more_token_us = 20, .tile_us = 5, .pass_tokens = 30};
  alone.logits_at(Precision::kBf16) = {.step_us = 70, .row_us = 7};
  StepPrecision precision;
  precision.layers[index_of(Precision::kBf16)] = 1;
  const StepWork half = {.tokens = 40, .logit_rows = 2, .context_tokens = 900, .kv_tokens = 500};
  const StepWork all = {.tokens = 80, .logit_rows = 2, .context_tokens = 1800, .kv_tokens = 1000};
  const GroupCost fast =
      sequence_cost(alone, spec, KvPrecision::kBf16, {.us = 5, .bytes_per_us = 1e15});
  const double half_us = predict_us(alone, half, precision);
  EXPECT_NEAR(predict_us(fast.on(1), half, precision), half_us, 1e-6);
  EXPECT_NEAR(predict_us(fast.on(2), all, precision), half_us + 2 * spec.layers * 5, 1e-6);
  const GroupCost slow =
      sequence_cost(alone, spec, KvPrecision::kBf16, {.us = 5, .bytes_per_us = 100});
  const auto kv_bytes = static_cast<double>(80 * kv_token_bytes(spec, KvPrecision::kBf16));
  EXPECT_NEAR(predict_us(slow.on(2), all, precision) - predict_us(fast.on(2), all, precision),
              kv_bytes / 2 / 100, 1e-6)
      << "half of the KV comes from the other device";
}

// A group that parts fetches three quarters of a layer's attention for each of four devices, unless
// they have kept them. KV moves all the same.
TEST(GroupCost, DevicesThatKeepAttentionWeightsFetchNone) {
  ModelSpec spec;
  spec.layers = 2;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  Form form = single_device_form(spec, Precision::kBf16, DeviceId{0}, {.blocks = 8});
  form.shards = 4;
  const std::array devices = {DeviceId{0}, DeviceId{1}, DeviceId{2}, DeviceId{3}};
  form = divide(form, even_division(spec.layers, 4, 1), devices);
  const HoldShards apart{0, Component::kAttention, std::vector<ShardRun>(4, {0, 4})};
  const std::vector<Copy> homes = {{0}, {1}, {2}, {3}};
  const std::vector<std::int64_t> live = {2, 2, 2, 2};
  const std::int64_t attention = component_bytes(spec, Component::kAttention, Precision::kBf16);
  EXPECT_EQ(weight_bytes_fetched(spec, form, apart),
            std::vector<std::int64_t>(4, attention / 4 * 3));
  const auto kv = kv_bytes_received(spec, form, apart, homes, live);
  form.attention_kept = 4;
  EXPECT_EQ(weight_bytes_fetched(spec, form, apart), std::vector<std::int64_t>(4, 0));
  EXPECT_EQ(kv_bytes_received(spec, form, apart, homes, live), kv);
}

}  // namespace
}  // namespace protean
