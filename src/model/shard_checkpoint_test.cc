#include "model/shard_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/architecture.h"
#include "model/synthetic_checkpoint.h"
#include "model/weights.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

ModelSpec divisible_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = 2;
  spec.hidden = 64;
  spec.ffn = 160;
  spec.vocab = 70;
  spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 16};
  spec.attention.qkv_bias = spec.attention.output_bias = spec.attention.qk_norm = true;
  return spec;
}

// A checkpoint whose layers' matrices are stored as integers.
class StoredCheckpoint final : public SyntheticCheckpoint {
 public:
  using SyntheticCheckpoint::SyntheticCheckpoint;

  std::optional<QuantFormat> stored_format(TensorRole role, int) const override {
    const bool vector = role == TensorRole::kQueryBias || role == TensorRole::kAttentionNorm;
    return vector ? std::nullopt : std::optional(QuantFormat{4, 32, false});
  }
  QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                   std::int64_t count) const override {
    const std::int64_t width = row_length(role);
    std::vector<float> rows(static_cast<std::size_t>(count * width));
    read_rows(role, layer, row, count, rows.data());
    return round_to_nearest(rows, width, *stored_format(role, layer));
  }
};

struct Axis {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

Axis size_of(const ModelSpec& spec, TensorRole role) {
  for (const NeededTensor& need : needed_tensors(spec)) {
    if (need.role == role) {
      return need.columns == 0 ? Axis{1, need.rows} : Axis{need.rows, need.columns};
    }
  }
  return {};
}

std::vector<float> all_of(const Checkpoint& checkpoint, TensorRole role) {
  const Axis size = size_of(checkpoint.spec(), role);
  std::vector<float> values(static_cast<std::size_t>(size.rows * size.columns));
  checkpoint.read_rows(role, 1, 0, size.rows, values.data());
  return values;
}

double sum_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += std::abs(value);
  }
  return sum;
}

void expect_together(const Checkpoint& model, TensorRole role) {
  const double whole = sum_of(all_of(model, role));
  double together = 0;
  for (int shard = 0; shard < 4; ++shard) {
    together += sum_of(all_of(ShardCheckpoint(model, shard, 4), role));
  }
  EXPECT_NEAR(together, whole, 1e-6 * whole) << static_cast<int>(role);
}

TEST(ShardCheckpoint, ShardsTogetherAreTheLayer) {
  const SyntheticCheckpoint model(divisible_spec());
  for (const TensorRole role :
       {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue, TensorRole::kAttentionOutput,
        TensorRole::kGate, TensorRole::kUp, TensorRole::kDown, TensorRole::kQueryBias,
        TensorRole::kKeyBias, TensorRole::kValueBias, TensorRole::kAttentionOutputBias}) {
    expect_together(model, role);
  }
  for (const TensorRole role : {TensorRole::kAttentionNorm, TensorRole::kMlpNorm,
                                TensorRole::kQueryNorm, TensorRole::kKeyNorm}) {
    EXPECT_EQ(all_of(ShardCheckpoint(model, 3, 4), role), all_of(model, role));
  }
  ModelSpec normed_together = divisible_spec();
  normed_together.attention.qk_norm_over_heads = true;
  expect_together(SyntheticCheckpoint(normed_together), TensorRole::kQueryNorm);
  expect_together(SyntheticCheckpoint(normed_together), TensorRole::kKeyNorm);
}

TEST(ShardCheckpoint, CutsRowsOfWhatIsReadAndColumnsOfWhatIsWritten) {
  const SyntheticCheckpoint model(divisible_spec());
  const ShardCheckpoint shard(model, 2, 4);
  EXPECT_EQ(shard.spec().ffn, 64);  // 40 neurons and padding
  const std::vector<float> up = all_of(model, TensorRole::kUp);
  const std::vector<float> its_up = all_of(shard, TensorRole::kUp);
  // Shards have 64 neurons: the third has 128 to 159.
  EXPECT_TRUE(std::equal(its_up.begin(), its_up.begin() + 32 * 64, up.begin() + 128 * 64));
  EXPECT_TRUE(std::all_of(its_up.begin() + 32 * 64, its_up.end(), [](float x) { return x == 0; }));
  const std::vector<float> down = all_of(model, TensorRole::kDown);
  const std::vector<float> its_down = all_of(shard, TensorRole::kDown);
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t i = 0; i < 64; ++i) {
      const float want = i < 32 ? down[static_cast<std::size_t>(row * 160 + 128 + i)] : 0.0F;
      EXPECT_EQ(its_down[static_cast<std::size_t>(row * 64 + i)], want);
    }
  }
}

TEST(ShardCheckpoint, KeepsStoredIntegersWhereShardsBeginWithAGroup) {
  ModelSpec spec = divisible_spec();
  spec.stored = {Precision::kW4, 32};
  const StoredCheckpoint model(spec);
  for (const int shards : {2, 4}) {
    for (int u = 0; u < shards; ++u) {
      const ShardCheckpoint shard(model, u, shards);
      for (const TensorRole role : {TensorRole::kQuery, TensorRole::kGate, TensorRole::kDown,
                                    TensorRole::kAttentionOutput}) {
        const Axis size = size_of(shard.spec(), role);
        ASSERT_TRUE(shard.stored_format(role, 1)) << shards;
        const QuantizedMatrix stored = shard.read_stored_rows(role, 1, 0, size.rows);
        std::vector<float> got(static_cast<std::size_t>(size.rows * size.columns));
        dequantize_rows(stored.view(), 0, size.rows, got.data());
        // Compares with the model's integers, cut afterwards.
        const QuantizedMatrix whole = model.read_stored_rows(role, 1, 0, size_of(spec, role).rows);
        const bool by_rows = role == TensorRole::kQuery || role == TensorRole::kGate;
        std::vector<float> want(static_cast<std::size_t>(whole.rows * whole.inputs));
        dequantize_rows(whole.view(), 0, whole.rows, want.data());
        for (std::int64_t r = 0; r < size.rows; ++r) {
          for (std::int64_t c = 0; c < size.columns; ++c) {
            const std::int64_t row = by_rows ? u * size.rows + r : r;
            const std::int64_t column = by_rows ? c : u * size.columns + c;
            const bool real = row < whole.rows && column < whole.inputs;
            EXPECT_EQ(got[static_cast<std::size_t>(r * size.columns + c)],
                      real ? want[static_cast<std::size_t>(row * whole.inputs + column)] : 0.0F);
          }
        }
      }
    }
  }
  spec.attention.head_dim = 8;  // 16 inputs of a shard's attention output are half a group
  const StoredCheckpoint narrow(spec);
  EXPECT_FALSE(ShardCheckpoint(narrow, 0, 4).stored_format(TensorRole::kAttentionOutput, 0));
  EXPECT_TRUE(ShardCheckpoint(narrow, 0, 4).stored_format(TensorRole::kQuery, 0));
}

}  // namespace
}  // namespace protean
