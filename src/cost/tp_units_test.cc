#include "cost/tp_units.h"

#include <gtest/gtest.h>

#include "cost/memory.h"

namespace protean {
namespace {

ModelSpec spec_of(int ffn, StoredWeights stored = {}) {
  ModelSpec spec;
  spec.layers = 2;
  spec.hidden = 1024;
  spec.ffn = ffn;
  spec.attention = {.heads = 16, .kv_heads = 4, .head_dim = 64};
  spec.stored = stored;
  return spec;
}

TEST(TpUnits, TogetherHaveEveryHeadAndNeuronOnce) {
  for (const int ffn : {1, 31, 64, 704, 1000, 4864, 8192, 11008, 14336}) {
    for (const StoredWeights& stored :
         {StoredWeights{}, StoredWeights{Precision::kW4, 128}, StoredWeights{Precision::kW8, 32}}) {
      const ModelSpec spec = spec_of(ffn, stored);
      for (const int units : {1, 2, 4}) {
        const ModelSpec unit = unit_spec(spec, units);
        EXPECT_EQ(unit.attention.heads * units, spec.attention.heads);
        EXPECT_EQ(unit.attention.kv_heads * units, spec.attention.kv_heads);
        std::int64_t next = 0;
        for (int i = 0; i < units; ++i) {
          const NeuronRange neurons = neurons_of(spec, i, units);
          EXPECT_EQ(neurons.first, next);
          EXPECT_LE(neurons.count, unit.ffn);
          next += neurons.count;
        }
        EXPECT_EQ(next, ffn);
      }
    }
  }
}

TEST(TpUnits, BeginWithAGroupWhereAnyLayerIsStoredInThem) {
  StoredWeights stored{.precision = Precision::kBf16, .group = 128};
  stored.layers = {{Precision::kBf16, Precision::kBf16}, {Precision::kBf16, Precision::kW4}};
  EXPECT_EQ(unit_spec(spec_of(4864, stored), 4).ffn % 128, 0);
}

// The paper counts 0 to 14 % of a model's weights (figure 10b).
TEST(TpUnits, PaddingIsBoundedByAKernelBlockOrGroupOfEachUnit) {
  for (const int ffn : {704, 4864, 8192, 8960, 11008, 14336, 18944}) {
    for (const int units : {2, 4}) {
      const ModelSpec plain = spec_of(ffn);
      EXPECT_LT(unit_spec(plain, units).ffn * units, ffn + units * 32);
      const ModelSpec stored = spec_of(ffn, {Precision::kW4, 128});
      EXPECT_LT(unit_spec(stored, units).ffn * units, ffn + units * 128);
      EXPECT_EQ(unit_spec(stored, units).ffn % 128, 0);
      for (const Precision precision : {Precision::kBf16, Precision::kW4}) {
        const auto bytes = static_cast<double>(units) *
                           static_cast<double>(layer_bytes(unit_spec(plain, units), precision));
        EXPECT_LT(bytes, 1.14 * static_cast<double>(layer_bytes(plain, precision))) << ffn;
      }
    }
  }
}

}  // namespace
}  // namespace protean
