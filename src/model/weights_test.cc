#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/units.h"
#include "cost/memory.h"
#include "cost/pages.h"
#include "device/cpu/elementwise.h"
#include "model/synthetic_checkpoint.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

ModelSpec odd_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = 3;
  spec.hidden = 40;
  spec.ffn = 52;
  spec.vocab = 71;  // not a whole number of panels
  spec.max_context = 64;
  spec.attention = {.heads = 4,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .qkv_bias = true,
                    .output_bias = true,
                    .qk_norm = true};
  return spec;
}

std::vector<LayerPrecision> all(Precision precision) {
  return std::vector<LayerPrecision>(3, {precision, precision});
}

// Records which tensors were read and not released.
class WatchedCheckpoint : public SyntheticCheckpoint {
 public:
  using SyntheticCheckpoint::SyntheticCheckpoint;

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    SyntheticCheckpoint::read_rows(role, layer, row, count, out);
    most_rows_ = std::max(most_rows_, count);
    ++reads_[{role, layer}];
    held_[{role, layer}] = true;
    const auto is_held = [](const auto& entry) { return entry.second; };
    most_held_ = std::max(most_held_, std::count_if(held_.begin(), held_.end(), is_held));
  }
  void release(TensorRole role, int layer) const override { held_[{role, layer}] = false; }

  mutable std::map<std::pair<TensorRole, int>, int> reads_;
  mutable std::map<std::pair<TensorRole, int>, bool> held_;
  mutable std::int64_t most_rows_ = 0;
  mutable std::ptrdiff_t most_held_ = 0;
};

// Returns a row as a matrix of this format must store it, by the quantiser's own arithmetic.
std::vector<float> rounded(std::vector<float> row, const cpu::WeightFormat& format) {
  if (!format.quantized()) {
    cpu::round_to(format.inputs(), row);
    return row;
  }
  const auto inputs = static_cast<std::int64_t>(row.size());
  const QuantizedMatrix quantized = round_to_nearest(
      row, inputs, {.bits = format.bits(), .group = format.group, .symmetric = format.symmetric});
  dequantize_rows(quantized.view(), 0, 1, row.data());
  return row;
}

void expect_same(const Checkpoint& checkpoint, TensorRole role, int layer,
                 const cpu::PackedMatrix& matrix) {
  std::vector<float> row(static_cast<std::size_t>(matrix.inputs));
  std::vector<float> stored(row.size());
  for (std::int64_t r = 0; r < matrix.outputs; ++r) {
    checkpoint.read_rows(role, layer, r, 1, row.data());
    const std::vector<float> want = rounded(row, matrix.format);
    const auto id = static_cast<TokenId>(r);
    cpu::gather_rows(matrix, std::span(&id, 1), stored);
    for (std::size_t c = 0; c < row.size(); ++c) {
      // Offsets of the middle code are rounded to f16 again.
      const float slack = matrix.format.quantized() ? 1e-3F * std::abs(want[c]) + 1e-4F : 0.0F;
      ASSERT_NEAR(stored[c], want[c], slack) << "row " << r << " column " << c;
    }
  }
}

void expect_same(const Checkpoint& checkpoint, TensorRole role, int layer,
                 std::span<const float> vector) {
  std::vector<float> want(vector.size());
  checkpoint.read_rows(role, layer, 0, 1, want.data());
  EXPECT_TRUE(std::equal(vector.begin(), vector.end(), want.begin()));
}

void expect_layer(const Checkpoint& checkpoint, int layer, const LayerWeights& variant) {
  expect_same(checkpoint, TensorRole::kQuery, layer, variant.query);
  expect_same(checkpoint, TensorRole::kKey, layer, variant.key);
  expect_same(checkpoint, TensorRole::kValue, layer, variant.value);
  expect_same(checkpoint, TensorRole::kAttentionOutput, layer, variant.attention_output);
  expect_same(checkpoint, TensorRole::kGate, layer, variant.gate);
  expect_same(checkpoint, TensorRole::kUp, layer, variant.up);
  expect_same(checkpoint, TensorRole::kDown, layer, variant.down);
  expect_same(checkpoint, TensorRole::kAttentionNorm, layer, variant.attention_norm);
  expect_same(checkpoint, TensorRole::kMlpNorm, layer, variant.mlp_norm);
  expect_same(checkpoint, TensorRole::kQueryNorm, layer, variant.query_norm);
  expect_same(checkpoint, TensorRole::kKeyNorm, layer, variant.key_norm);
  expect_same(checkpoint, TensorRole::kQueryBias, layer, variant.query_bias);
  expect_same(checkpoint, TensorRole::kKeyBias, layer, variant.key_bias);
  expect_same(checkpoint, TensorRole::kValueBias, layer, variant.value_bias);
  expect_same(checkpoint, TensorRole::kAttentionOutputBias, layer, variant.attention_output_bias);
}

TEST(Weights, EveryTensorIsWhereTheSpecSaysAtItsPrecision) {
  const SyntheticCheckpoint checkpoint(odd_spec());
  const std::vector<LayerPrecision> mixed = {{Precision::kF32, Precision::kF32},
                                             {Precision::kBf16, Precision::kBf16},
                                             {Precision::kF32, Precision::kF32}};
  const auto weights = load_weights(checkpoint, mixed, Precision::kBf16);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  for (int layer = 0; layer < 3; ++layer) {
    const LayerWeights& variant = weights->layers[static_cast<std::size_t>(layer)];
    EXPECT_EQ(variant.precision, mixed[static_cast<std::size_t>(layer)]);
    expect_layer(checkpoint, layer, variant);
  }
  EXPECT_EQ(weights->embeddings.front().embedding.format.kind, cpu::WeightKind::kBf16);
  expect_same(checkpoint, TensorRole::kEmbedding, 0, weights->embeddings.front().embedding);
  expect_same(checkpoint, TensorRole::kOutput, 0, weights->embeddings.front().output);
  expect_same(checkpoint, TensorRole::kFinalNorm, 0, weights->embeddings.front().final_norm);
}

TEST(Weights, EmbeddingsHaveAPrecisionOfTheirOwn) {
  const SyntheticCheckpoint checkpoint(odd_spec());
  for (const Precision embeddings : {Precision::kF32, Precision::kW8, Precision::kW8A8}) {
    const auto weights = load_weights(checkpoint, all(Precision::kBf16), embeddings);
    ASSERT_TRUE(weights.ok());
    EXPECT_EQ(weights->embeddings.front().embedding.format, weight_format(embeddings, 128));
    expect_same(checkpoint, TensorRole::kEmbedding, 0, weights->embeddings.front().embedding);
    expect_same(checkpoint, TensorRole::kOutput, 0, weights->embeddings.front().output);
  }
}

TEST(Weights, TiedEmbeddingsAreOnePieceOfMemoryAndReadOnce) {
  ModelSpec spec = odd_spec();
  spec.tied_embeddings = true;
  spec.attention.qkv_bias = spec.attention.output_bias = spec.attention.qk_norm = false;
  const WatchedCheckpoint checkpoint(spec);
  const auto weights = load_weights(checkpoint, all(Precision::kBf16),
                                    default_embeddings_precision(Precision::kBf16));
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->embeddings.front().embedding.data, weights->embeddings.front().output.data);
  EXPECT_FALSE(checkpoint.reads_.contains({TensorRole::kOutput, 0}));
  EXPECT_FALSE(checkpoint.reads_.contains({TensorRole::kQueryBias, 0}));
  EXPECT_TRUE(weights->layers[0].query_bias.empty());
  EXPECT_TRUE(weights->layers[0].query_norm.empty());
}

using Piece = std::pair<const std::byte*, std::int64_t>;

std::vector<Piece> pieces_of(const LayerWeights& layer, Component half) {
  const bool mlp = half == Component::kMlp;
  const std::vector<cpu::PackedMatrix> matrices =
      mlp ? std::vector{layer.gate, layer.up, layer.down}
          : std::vector{layer.query, layer.key, layer.value, layer.attention_output};
  const std::vector<std::span<float>> vectors =
      mlp ? std::vector{layer.mlp_norm}
          : std::vector{layer.attention_norm,       layer.query_norm, layer.key_norm,
                        layer.query_bias,           layer.key_bias,   layer.value_bias,
                        layer.attention_output_bias};
  std::vector<Piece> pieces;
  for (const cpu::PackedMatrix& matrix : matrices) {
    pieces.emplace_back(matrix.data, matrix.bytes());
  }
  for (const std::span<float> vector : vectors) {
    pieces.emplace_back(reinterpret_cast<const std::byte*>(vector.data()), vector.size_bytes());
  }
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

TEST(Weights, PiecesAreAlignedInTheirHalfAndDoNotOverlap) {
  const ModelSpec spec = odd_spec();
  for (const Precision precision : kPrecisions) {
    for (const Component half : kLayerHalves) {
      const std::int64_t size = component_size(spec, half, precision);
      const auto memory = cpu::Region::map(size);
      ASSERT_TRUE(memory.ok());
      LayerWeights layer;
      bind_half(layer, spec, half, precision, memory->data());
      EXPECT_EQ(layer.precision.of(half), precision);
      const std::byte* end = memory->data();
      for (const auto& [data, bytes] : pieces_of(layer, half)) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
        EXPECT_GE(data, end);
        EXPECT_GT(bytes, 0);
        end = data + bytes;
      }
      EXPECT_LE(end, memory->data() + size);
    }
  }
}

// Returns where the first vector of a half begins, behind its matrices.
std::int64_t matrices_size(const ModelSpec& spec, Component half, Precision precision) {
  auto memory = *cpu::Region::map(component_size(spec, half, precision));
  LayerWeights layer;
  bind_half(layer, spec, half, precision, memory.data());
  const float* const first =
      half == Component::kAttention ? layer.attention_norm.data() : layer.mlp_norm.data();
  return reinterpret_cast<const std::byte*>(first) - memory.data();
}

// The planner counts pages by cost's arithmetic before anything is laid out.
TEST(Weights, PagesOfAHalfHoldItsMatrices) {
  ModelSpec bare = odd_spec();
  bare.attention.qkv_bias = bare.attention.output_bias = bare.attention.qk_norm = false;
  ModelSpec wide = odd_spec();
  wide.hidden = 2048;
  wide.ffn = 8192;
  for (const ModelSpec& spec : {odd_spec(), bare, wide}) {
    for (const Precision precision : kPrecisions) {
      for (const Component half : kLayerHalves) {
        for (const std::int64_t page_bytes : {page_bytes_for(spec), 4 * kKiB, 2 * kMiB}) {
          const std::int64_t pages = component_pages(spec, half, precision, page_bytes);
          const std::int64_t size = matrices_size(spec, half, precision);
          EXPECT_EQ(matrices_bytes(spec, half, precision), size);
          EXPECT_GE(pages * page_bytes, size) << to_string(precision) << to_string(half);
          EXPECT_LT((pages - 1) * page_bytes, size) << to_string(precision) << to_string(half);
        }
      }
    }
  }
}

TEST(Weights, AHalfIsTheSameBytesWhateverMemoryHeldBefore) {
  const WatchedCheckpoint checkpoint(odd_spec());
  for (const Component half : kLayerHalves) {
    const std::int64_t size = component_size(checkpoint.spec(), half, Precision::kW4);
    auto first = cpu::Region::map(size);
    auto second = cpu::Region::map(size);
    ASSERT_TRUE(first.ok() && second.ok());
    std::fill_n(first->data(), size, std::byte{0xA5});
    ASSERT_TRUE(load_component(checkpoint, {2, half, Precision::kW4}, first->data()).ok());
    ASSERT_TRUE(load_component(checkpoint, {2, half, Precision::kW4}, second->data()).ok());
    EXPECT_EQ(std::memcmp(first->data(), second->data(), static_cast<std::size_t>(size)), 0);
  }
  EXPECT_FALSE(checkpoint.reads_.contains({TensorRole::kEmbedding, 0}));
  EXPECT_FALSE(checkpoint.reads_.contains({TensorRole::kGate, 0}));
}

TEST(Weights, PackingIsPacedAndCanBeCalledOff) {
  const SyntheticCheckpoint checkpoint(odd_spec());
  const ComponentVariant which = {1, Component::kMlp, Precision::kBf16};
  const auto memory =
      cpu::Region::map(component_size(checkpoint.spec(), which.component, which.precision));
  ASSERT_TRUE(memory.ok());
  std::int64_t paced_bytes = 0;
  ASSERT_TRUE(load_component(checkpoint, which, memory->data(), [&](std::int64_t bytes) {
                paced_bytes += bytes;
                return true;
              }).ok());
  LayerWeights layer;
  bind_half(layer, checkpoint.spec(), which.component, which.precision, memory->data());
  EXPECT_EQ(paced_bytes, layer.gate.bytes() + layer.up.bytes() + layer.down.bytes());
  int calls = 0;
  const Status stopped =
      load_component(checkpoint, which, memory->data(), [&](std::int64_t) { return ++calls < 2; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(calls, 2);
}

TEST(Weights, LayersInBorrowedMemoryAreNotCounted) {
  const SyntheticCheckpoint checkpoint(odd_spec());
  const auto outer = load_embeddings(checkpoint, Precision::kBf16,
                                     whole_model(checkpoint.spec().layers, 1, DeviceId{}));
  ASSERT_TRUE(outer.ok());
  EXPECT_EQ(outer->layers.size(), 3U);
  ASSERT_EQ(outer->memory.size(), 1U);
  EXPECT_EQ(outer->bytes(), outer->memory[0].bytes());
  expect_same(checkpoint, TensorRole::kEmbedding, 0, outer->embeddings.front().embedding);
}

TEST(Weights, LoadingHoldsOneTensorOfThirtyTwoRowsAtATime) {
  const WatchedCheckpoint checkpoint(odd_spec());
  ASSERT_TRUE(load_weights(checkpoint, all(Precision::kBf16),
                           default_embeddings_precision(Precision::kBf16))
                  .ok());
  EXPECT_EQ(checkpoint.most_held_, 1);
  EXPECT_EQ(checkpoint.most_rows_, 32);
  for (const auto& [tensor, held] : checkpoint.held_) {
    EXPECT_FALSE(held) << "role " << static_cast<int>(tensor.first) << " layer " << tensor.second;
  }
}

TEST(Weights, ProgressCountsUpToTheWhole) {
  const SyntheticCheckpoint checkpoint(odd_spec());
  std::vector<std::int64_t> done;
  std::int64_t total = 0;
  const auto weights = load_weights(checkpoint, all(Precision::kBf16),
                                    default_embeddings_precision(Precision::kBf16),
                                    [&](std::int64_t done_bytes, std::int64_t total_bytes) {
                                      done.push_back(done_bytes);
                                      total = total_bytes;
                                    });
  ASSERT_TRUE(weights.ok());
  ASSERT_EQ(done.size(), 3U);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  EXPECT_GE(weights->bytes(), total);
}

TEST(Weights, LayersAreQuantisedAndTheirEmbeddingsAreNot) {
  ModelSpec spec = odd_spec();
  spec.hidden = 200;  // more than one group
  const SyntheticCheckpoint checkpoint(spec);
  const std::vector<LayerPrecision> mixed = {{Precision::kW8, Precision::kW8},
                                             {Precision::kBf16, Precision::kW4},
                                             {Precision::kW4, Precision::kW3}};
  const auto weights = load_weights(checkpoint, mixed, Precision::kBf16);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  for (int layer = 0; layer < 3; ++layer) {
    const LayerWeights& variant = weights->layers[static_cast<std::size_t>(layer)];
    EXPECT_EQ(variant.precision, mixed[static_cast<std::size_t>(layer)]);
    EXPECT_TRUE(variant.down.format.quantized());
    expect_layer(checkpoint, layer, variant);
  }
  EXPECT_EQ(weights->embeddings.front().embedding.format.kind, cpu::WeightKind::kBf16);
  expect_same(checkpoint, TensorRole::kOutput, 0, weights->embeddings.front().output);
}

// cost/memory.h predicts sizes before anything is loaded.
TEST(Weights, TakeTheBytesThatCostPredicts) {
  ModelSpec spec = odd_spec();
  spec.hidden = 200;
  for (const int group : {32, 64, 128}) {
    spec.stored.group = group;
    const SyntheticCheckpoint checkpoint(spec);
    for (const Precision precision : kPrecisions) {
      const auto weights =
          load_weights(checkpoint, all(precision), default_embeddings_precision(precision));
      ASSERT_TRUE(weights.ok());
      const std::int64_t pieces = 3 * 15 + 3;  // each aligned to 64 bytes
      const std::int64_t predicted =
          3 * layer_bytes(spec, precision) +
          component_bytes(spec, Component::kEmbeddings, default_embeddings_precision(precision));
      EXPECT_GE(weights->bytes(), predicted) << to_string(precision) << " g" << group;
      EXPECT_LE(weights->bytes(), predicted + pieces * 64) << to_string(precision) << " g" << group;
    }
  }
}

// A checkpoint in which one value of a tensor is `value`.
class DamagedCheckpoint : public SyntheticCheckpoint {
 public:
  DamagedCheckpoint(TensorRole role, float value)
      : SyntheticCheckpoint(odd_spec()), role_(role), value_(value) {}

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    SyntheticCheckpoint::read_rows(role, layer, row, count, out);
    const bool outer = role == TensorRole::kEmbedding || role == TensorRole::kFinalNorm;
    const bool vector = role == TensorRole::kFinalNorm || role == TensorRole::kKeyBias;
    if (role == role_ && layer == (outer ? 0 : 1) && row == (vector ? 0 : 32)) {
      out[5] = value_;
    }
  }

 private:
  const TensorRole role_;
  const float value_;
};

std::string error_of_loading(const Checkpoint& checkpoint, Precision precision, ErrorCode code) {
  const auto weights =
      load_weights(checkpoint, all(precision), default_embeddings_precision(precision));
  if (weights.ok()) {
    return "";
  }
  EXPECT_EQ(weights.error().code, code);
  return weights.error().message;
}

TEST(Weights, AWeightThatCannotBeQuantisedIsAnErrorThatSaysWhere) {
  const DamagedCheckpoint checkpoint(TensorRole::kUp, 1e6F);
  EXPECT_EQ(error_of_loading(checkpoint, Precision::kBf16, ErrorCode::kUnsupported), "");
  const std::string error = error_of_loading(checkpoint, Precision::kW4, ErrorCode::kUnsupported);
  EXPECT_NE(error.find("layer 1, up projection, rows from 32"), std::string::npos) << error;
}

TEST(Weights, NaNAndInfinityAreRefusedWithTheirTensor) {
  const std::pair<TensorRole, const char*> tensors[] = {
      {TensorRole::kUp, "layer 1, up projection, rows from 32: "},
      {TensorRole::kKeyBias, "layer 1, key bias: "},
      {TensorRole::kFinalNorm, "final norm: "},
      {TensorRole::kEmbedding, "embedding matrix, rows from 32: "}};
  for (const auto& [role, place] : tensors) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const Precision precision : {Precision::kBf16, Precision::kW8}) {
        const std::string error =
            error_of_loading(DamagedCheckpoint(role, value), precision, ErrorCode::kCorrupt);
        EXPECT_EQ(error.find(place), 0U) << error;
      }
    }
  }
}

}  // namespace
}  // namespace protean
