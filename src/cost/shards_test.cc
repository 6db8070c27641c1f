#include "cost/shards.h"

#include <gtest/gtest.h>

#include "cost/memory.h"

namespace protean {
namespace {

ModelSpec spec_with(int ffn, StoredWeights stored = {}) {
  ModelSpec spec;
  spec.layers = 2;
  spec.hidden = 1024;
  spec.ffn = ffn;
  spec.attention = {.heads = 16, .kv_heads = 4, .head_dim = 64};
  spec.stored = stored;
  return spec;
}

TEST(Shards, TogetherHaveEveryHeadAndNeuronOnce) {
  for (const int ffn : {1, 31, 64, 704, 1000, 4864, 8192, 11008, 14336}) {
    for (const StoredWeights& stored :
         {StoredWeights{}, StoredWeights{Precision::kW4, 128}, StoredWeights{Precision::kW8, 32}}) {
      const ModelSpec spec = spec_with(ffn, stored);
      for (const int shards : {1, 2, 4}) {
        const ModelSpec shard = shard_spec(spec, shards);
        EXPECT_EQ(shard.attention.heads * shards, spec.attention.heads);
        EXPECT_EQ(shard.attention.kv_heads * shards, spec.attention.kv_heads);
        std::int64_t next = 0;
        for (int i = 0; i < shards; ++i) {
          const IndexRange neurons = neurons_of(spec, i, shards);
          EXPECT_EQ(neurons.first, next);
          EXPECT_LE(neurons.count, shard.ffn);
          next += neurons.count;
        }
        EXPECT_EQ(next, ffn);
      }
    }
  }
}

TEST(Shards, BeginWithAGroupWhereAnyLayerIsStoredInThem) {
  StoredWeights stored{.precision = Precision::kBf16, .group = 128};
  stored.layers = {{Precision::kBf16, Precision::kBf16}, {Precision::kBf16, Precision::kW4}};
  EXPECT_EQ(shard_spec(spec_with(4864, stored), 4).ffn % 128, 0);
}

// The paper counts 0 to 14 % of a model's weights (figure 10b).
TEST(Shards, PaddingIsBoundedByAKernelBlockOrGroupOfEachShard) {
  for (const int ffn : {704, 4864, 8192, 8960, 11008, 14336, 18944}) {
    for (const int shards : {2, 4}) {
      const ModelSpec plain = spec_with(ffn);
      EXPECT_LT(shard_spec(plain, shards).ffn * shards, ffn + shards * 32);
      const ModelSpec stored = spec_with(ffn, {Precision::kW4, 128});
      EXPECT_LT(shard_spec(stored, shards).ffn * shards, ffn + shards * 128);
      EXPECT_EQ(shard_spec(stored, shards).ffn % 128, 0);
      for (const Precision precision : {Precision::kBf16, Precision::kW4}) {
        const auto bytes = static_cast<double>(shards) *
                           static_cast<double>(layer_bytes(shard_spec(plain, shards), precision));
        EXPECT_LT(bytes, 1.14 * static_cast<double>(layer_bytes(plain, precision))) << ffn;
      }
    }
  }
}

}  // namespace
}  // namespace protean
