#include "replica/fingerprint.h"

#include <gtest/gtest.h>

#include "cost/memory.h"
#include "device/cpu/team.h"
#include "model/random_checkpoint.h"

namespace protean {
namespace {

ModelSpec tiny(int layers) {
  ModelSpec spec{.architecture = "test",
                 .layers = layers,
                 .hidden = 64,
                 .ffn = 128,
                 .vocab = 300,
                 .max_context = 512};
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

Fingerprint fingerprint_of(const ModelSpec& spec, std::vector<Precision> layers) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, spec, 1);
  const auto found =
      measure_fingerprint(checkpoint, {.layers = std::move(layers), .kv = {}, .budget_s = 0});
  EXPECT_TRUE(found.ok()) << found.error().message;
  return found.ok() ? *found : Fingerprint();
}

TEST(Fingerprint, KnowsEveryPrecisionAndTheMemoryOfTheWholeModel) {
  const ModelSpec spec = tiny(5);
  const std::vector<Precision> layers = {Precision::kBf16, Precision::kW8, Precision::kW4};
  const Fingerprint found = fingerprint_of(spec, layers);
  ASSERT_EQ(found.models.size(), 3U);
  for (const ModelEstimate& model : found.models) {
    SCOPED_TRACE(to_string(model.precision));
    StepPrecision whole{.embeddings = default_embeddings_precision(model.precision)};
    whole.layers[index_of(model.precision)] = 1;
    EXPECT_TRUE(covers(found.cost, whole));
    const Form form = single_device_form(spec, model.precision, DeviceId{0}, {});
    EXPECT_EQ(model.weight_bytes, weight_bytes(spec, form));
    EXPECT_EQ(model.kv_token_bytes, kv_token_bytes(spec, KvPrecision::kBf16));
  }
  EXPECT_GT(found.cost.copy_bytes_per_us, 0);
}

TEST(Fingerprint, AModelMayHaveOneLayerAndAShortContext) {
  ModelSpec spec = tiny(1);
  const Fingerprint one = fingerprint_of(spec, {Precision::kW4});
  EXPECT_EQ(one.layers, 1);
  EXPECT_TRUE(one.cost.of(Precision::kW4).is_known());
}

TEST(Fingerprint, PausesBeforeEachStep) {
  const ModelSpec spec = tiny(3);
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, spec, 1);
  std::size_t pauses = 0;
  const auto found = measure_fingerprint(
      checkpoint,
      {.layers = {Precision::kBf16}, .kv = {}, .budget_s = 0, .before_step = [&] { ++pauses; }});
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_GE(pauses, found->steps.size());
}

}  // namespace
}  // namespace protean
