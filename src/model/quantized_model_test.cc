#include "model/quantized_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>

#include "device/cpu/bf16.h"
#include "model/model_copy_for_test.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "quant/round_to_nearest.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

// Has grouped queries, biases, and a row length that is not a whole number of groups.
ModelSpec two_layer_spec() {
  ModelSpec spec;
  spec.architecture = "qwen2";
  spec.layers = 2;
  spec.hidden = 96;
  spec.ffn = 160;
  spec.vocab = 300;
  spec.max_context = 256;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 32, .qkv_bias = true};
  return spec;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    size += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / size);
}

class QuantizedModel : public testing::Test {
 protected:
  QuantizedModel() {
    write_hf_checkpoint(source_.path(), two_layer_spec());
    checkpoint_ = opened(source_.path());
  }

  Status write(const TemporaryDirectory& target, const QuantizeOptions& options) {
    return write_quantized_model(team_,
                                 {.source = source_.path(),
                                  .target = target.path(),
                                  .options = options,
                                  .sequences = random_text(two_layer_spec().vocab)},
                                 [&](std::int64_t done, std::int64_t) { done_ = done; });
  }

  TemporaryDirectory source_;
  std::unique_ptr<Checkpoint> checkpoint_;
  cpu::Team team_{2};
  std::int64_t done_ = 0;
};

TEST_F(QuantizedModel, RoundedWeightsComeBackAsTheirCodes) {
  for (const QuantFormat& format : {QuantFormat{4, 32, false}, QuantFormat{8, 128, true},
                                    QuantFormat{3, 64, false}, QuantFormat{4, 64, true}}) {
    const TemporaryDirectory target;
    const Status written = write(target, {.format = format});
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_EQ(done_, 2);
    const auto quantized = opened(target.path());
    ASSERT_NE(quantized, nullptr);
    EXPECT_EQ(quantized->description().find("safetensors, 1 file, BF16 and "), 0U)
        << quantized->description();
    EXPECT_EQ(weight_format(quantized->spec().stored.precision, 0).bits(), format.bits);
    EXPECT_EQ(quantized->spec().stored.group, format.group);
    for (const NeededTensor& need : needed_tensors(checkpoint_->spec())) {
      const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
      const std::int64_t width = need.columns == 0 ? need.rows : need.columns;
      std::vector<float> before(static_cast<std::size_t>(rows * width));
      std::vector<float> after(before.size());
      checkpoint_->read_rows(need.role, need.layer, 0, rows, before.data());
      quantized->read_rows(need.role, need.layer, 0, rows, after.data());
      const bool matrix = std::count(kLayerMatrices.begin(), kLayerMatrices.end(), need.role) == 1;
      if (!matrix) {
        EXPECT_FALSE(quantized->stored_format(need.role, need.layer).has_value());
        EXPECT_EQ(before, after);
        continue;
      }
      const auto stored = quantized->stored_format(need.role, need.layer);
      ASSERT_TRUE(stored.has_value());
      EXPECT_EQ(stored->bits, format.bits);
      EXPECT_EQ(stored->symmetric, format.symmetric);
      const QuantizedMatrix want = round_to_nearest(before, width, *stored);
      const QuantizedMatrix got = quantized->read_stored_rows(need.role, need.layer, 0, need.rows);
      EXPECT_EQ(got.codes, want.codes);
      EXPECT_EQ(got.scales, want.scales);
      EXPECT_EQ(got.offsets, want.offsets);
      dequantize_rows(want.view(), 0, rows, before.data());
      for (std::size_t i = 0; i < before.size(); ++i) {
        ASSERT_NEAR(after[i], before[i], 1e-6);
      }
    }
  }
}

// Codes that GPTQ chose differ from those of rounding its weights again.
class StoredGroup : public QuantizedModel, public testing::WithParamInterface<int> {};
TEST_P(StoredGroup, LayersOfItsPrecisionHoldItsIntegers) {
  const TemporaryDirectory target;
  ASSERT_TRUE(write(target, {.method = QuantMethod::kGptq, .format = {4, GetParam(), false}}).ok());
  const auto quantized = opened(target.path());
  const auto loaded =
      load_weights(*quantized, std::vector<LayerPrecision>(2, {Precision::kW4, Precision::kW4}),
                   Precision::kBf16);
  ASSERT_TRUE(loaded.ok());
  const cpu::PackedMatrix& packed = loaded->layers[1].down;
  const QuantizedMatrix stored =
      quantized->read_stored_rows(TensorRole::kDown, 1, 0, packed.outputs);
  std::vector<float> weights(static_cast<std::size_t>(packed.outputs * packed.inputs));
  dequantize_rows(stored.view(), 0, packed.outputs, weights.data());
  const auto packed_as = [&](auto&& pack) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(packed.panel_bytes()));
    cpu::PackedMatrix copy = packed;
    copy.data = bytes.data();
    pack(copy);
    return bytes;
  };
  const QuantizedMatrix first = quantized->read_stored_rows(TensorRole::kDown, 1, 0, 32);
  const auto want = packed_as([&](const auto& copy) { cpu::pack_panel(copy, 0, first.view()); });
  const auto rounded = packed_as([&](const auto& copy) {
    const auto rows = std::span(weights).first(static_cast<std::size_t>(32 * packed.inputs));
    EXPECT_TRUE(pack_rows(copy, 0, rows).ok());
  });
  EXPECT_TRUE(std::equal(want.begin(), want.end(), packed.data));
  EXPECT_NE(want, rounded) << "the test would not notice";
}

INSTANTIATE_TEST_SUITE_P(Sizes, StoredGroup, testing::Values(32, 64, 128));

TEST_F(QuantizedModel, EveryMethodComputesNearlyTheSame) {
  const std::vector<float> want = outputs_of(team_, *checkpoint_);
  for (const QuantMethod method : {QuantMethod::kRoundToNearest, QuantMethod::kAwq,
                                   QuantMethod::kGptq, QuantMethod::kAwqGptq}) {
    const TemporaryDirectory target;
    ASSERT_TRUE(write(target, {.method = method, .format = {8, 32, true}}).ok());
    const auto quantized = opened(target.path());
    ASSERT_NE(quantized, nullptr);
    EXPECT_LT(relative_error(outputs_of(team_, *quantized), want), 0.02);
    std::vector<float> before(96);
    std::vector<float> after(96);
    checkpoint_->read_rows(TensorRole::kMlpNorm, 0, 0, 1, before.data());
    quantized->read_rows(TensorRole::kMlpNorm, 0, 0, 1, after.data());
    EXPECT_EQ(before != after, scales_inputs(method));  // its scales are in the norms
  }
}

TEST_F(QuantizedModel, CalibratedMethodsLoseLessThanRounding) {
  const std::vector<float> want = outputs_of(team_, *checkpoint_);
  const auto error_of = [&](QuantMethod method) {
    const TemporaryDirectory target;
    EXPECT_TRUE(write(target, {.method = method, .format = {3, 32, false}}).ok());
    const auto quantized = opened(target.path());
    return quantized == nullptr ? 1.0 : relative_error(outputs_of(team_, *quantized), want);
  };
  const double rounded = error_of(QuantMethod::kRoundToNearest);
  EXPECT_LT(error_of(QuantMethod::kAwq), 0.95 * rounded);
  EXPECT_LT(error_of(QuantMethod::kGptq), 0.95 * rounded);
  EXPECT_LT(error_of(QuantMethod::kAwqGptq), 0.95 * rounded);
}

TEST_F(QuantizedModel, AQuantisedModelIsNotQuantisedAgain) {
  const TemporaryDirectory target;
  ASSERT_TRUE(write(target, {.format = {4, 32, false}}).ok());
  const TemporaryDirectory again;
  const Status written = write_quantized_model(
      team_,
      {.source = target.path(), .target = again.path(), .options = {.format = {4, 32, false}}},
      [](std::int64_t, std::int64_t) {});
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("is quantised already"), std::string::npos);
}

// Heads of a GGUF file of the llama family rotate other pairs; those of a directory do not.
TEST_F(QuantizedModel, AGgufFileGivesTheCopyThatItsDirectoryGives) {
  const QuantizeOptions options{.format = {8, 32, true}};
  int compared = 0;
  for (NamedSpec model : architecture_specs()) {
    model.spec.ffn = 128;
    model.spec.hidden = 128;
    model.spec.attention.head_dim = 128 / model.spec.attention.heads;
    if (model.spec.attention.head_dim % 8 != 0) {
      continue;
    }
    const TemporaryDirectory directory;
    write_hf_checkpoint(directory.path(), model.spec, {.type = SafetensorsType::kF32});
    const TemporaryDirectory folder;
    const fs::path gguf = folder.path() / "model.gguf";
    if (!has_gguf(model.spec) || model.spec.rope.scaling == RopeScaling::kLong) {
      continue;  // longrope's factors are for the heads that the model had
    }
    write_gguf_checkpoint(gguf, model.spec, {.type = GgufType::kF32});
    std::vector<std::unique_ptr<Checkpoint>> copies;
    for (const fs::path& source : {fs::path(directory.path()), gguf}) {
      const TemporaryDirectory target;
      const Status written = write_quantized_model(
          team_, {.source = source, .target = target.path(), .options = options},
          [](std::int64_t, std::int64_t) {});
      if (!architecture_of(model.spec).writable) {
        ASSERT_FALSE(written.ok());
        EXPECT_NE(written.error().message.find("cannot be written quantised"), std::string::npos)
            << model.name << ": " << written.error().message;
        break;
      }
      ASSERT_TRUE(written.ok()) << model.name << ": " << written.error().message;
      copies.push_back(opened(target.path()));
      ASSERT_NE(copies.back(), nullptr);
    }
    if (copies.empty()) {
      continue;
    }
    const std::vector<double> want =
        rope_frequencies(copies[0]->spec().rope, model.spec.attention.head_dim);
    const std::vector<double> got =
        rope_frequencies(copies[1]->spec().rope, model.spec.attention.head_dim);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-4 * want[i]) << model.name;
    }
    for (const NeededTensor& need : needed_tensors(copies[0]->spec())) {
      const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
      const std::int64_t width = need.columns == 0 ? need.rows : need.columns;
      std::vector<float> a(static_cast<std::size_t>(rows * width));
      std::vector<float> b(a.size());
      copies[0]->read_rows(need.role, need.layer, 0, rows, a.data());
      copies[1]->read_rows(need.role, need.layer, 0, rows, b.data());
      ASSERT_EQ(a, b) << model.name << ", "
                      << tensor_name(architecture_of(model.spec).hf_tensors->names, need.role,
                                     need.layer);
    }
    ++compared;
  }
  EXPECT_GT(compared, 2);
}

TEST_F(QuantizedModel, RowsThatFillNoWordsAreRefusedByName) {
  ModelSpec spec = two_layer_spec();
  spec.ffn = 164;
  const TemporaryDirectory source;
  write_hf_checkpoint(source.path(), spec);
  const TemporaryDirectory target;
  const Status written = write_quantized_model(
      team_,
      {.source = source.path(), .target = target.path(), .options = {.format = {4, 32, false}}},
      [](std::int64_t, std::int64_t) {});
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("model.layers.0.mlp.gate_proj.weight"), std::string::npos)
      << written.error().message;
}

// Tensor descriptions in a file are checked against the config before data is read.
TEST_F(QuantizedModel, DamagedFilesAreRefused) {
  const TemporaryDirectory target;
  ASSERT_TRUE(write(target, {.format = {4, 32, true}}).ok());  // GPTQ
  const fs::path path = target.path() / "model.safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    const std::size_t at = bad.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    EXPECT_EQ(from.size(), to.size());
    bad.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary) << bad;
    const auto checkpoint = open_checkpoint(target.path());
    return checkpoint.ok() ? std::string("none") : checkpoint.error().message;
  };
  EXPECT_EQ(refusal("model.layers.0", "model.layers.0"), "none");
  EXPECT_NE(refusal("layers.1.mlp.up_proj.qzeros", "layers.1.mlp.up_proj.qzerox")
                .find("up_proj.qzeros is missing"),
            std::string::npos);
  EXPECT_NE(refusal("layers.0.mlp.down_proj.qweight\":{\"dtype\":\"I32\"",
                    "layers.0.mlp.down_proj.qweight\":{\"dtype\":\"F32\"")
                .find("down_proj.qweight is F32"),
            std::string::npos);
  EXPECT_NE(refusal("layers.0.mlp.down_proj.qweight\":{\"dtype\":\"I32\",\"shape\":[20,96]",
                    "layers.0.mlp.down_proj.qweight\":{\"dtype\":\"I32\",\"shape\":[96,20]")
                .find("down_proj.qweight is I32 of shape [96, 20]"),
            std::string::npos);
}

TEST_F(QuantizedModel, AGroupIndexOutOfItsGroupsIsRefused) {
  const TemporaryDirectory target;
  ASSERT_TRUE(write(target, {.format = {4, 32, true}}).ok());
  const fs::path path = target.path() / "model.safetensors";
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  // The last tensor is the g_idx of the last matrix; 32 inputs of group 4 precede the last input.
  std::string last_group(32 * 4, '\0');
  for (std::size_t i = 0; i < last_group.size(); i += 4) {
    last_group[i] = 4;
  }
  ASSERT_TRUE(bytes.ends_with(last_group) || bytes.find(last_group) != std::string::npos);
  const std::size_t at = bytes.rfind(last_group);
  for (const char group : {'\x05', '\xFF'}) {
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), 4, group);
    std::ofstream(path, std::ios::binary) << bytes;
    const auto checkpoint = open_checkpoint(target.path());
    ASSERT_FALSE(checkpoint.ok());
    EXPECT_NE(checkpoint.error().message.find("g_idx puts input 128 into group"), std::string::npos)
        << checkpoint.error().message;
  }
}

TEST(Calibration, TakesTextThroughLayersAsServingDoes) {
  const TemporaryDirectory directory;
  write_hf_checkpoint(directory.path(), two_layer_spec());
  const auto checkpoint = opened(directory.path());
  cpu::Team team(2);
  const std::vector<float> got = outputs_of(team, *checkpoint);

  const ModelSpec& spec = checkpoint->spec();
  const auto weights = load_weights(*checkpoint, std::vector<LayerPrecision>(2), Precision::kBf16);
  ASSERT_TRUE(weights.ok());
  auto scratch = Scratch::create(spec, 128, 1);
  const RotaryTables rope(spec, 128);
  const std::int64_t stride = 2 * 2 * 32 * 16 * 2;
  std::vector<float> memory(static_cast<std::size_t>(stride * 8 * 2) / sizeof(float));
  std::vector<cpu::KvLayer> kv(2, {.block_stride_bytes = stride, .kv_heads = 2, .head_dim = 32});
  kv[0].base = reinterpret_cast<std::byte*>(memory.data());
  kv[1].base = kv[0].base + stride * 8;
  const Forward forward({.team = &team,
                         .spec = &spec,
                         .weights = &*weights,
                         .rope = rope.view(),
                         .kv = kv,
                         .scratch = &*scratch});
  std::vector<BlockId> blocks(8);
  std::iota(blocks.begin(), blocks.end(), BlockId{0});
  std::vector<int> positions(128);
  std::iota(positions.begin(), positions.end(), 0);
  auto expected = got.begin();
  for (const std::vector<TokenId>& tokens : random_text(spec.vocab)) {
    const cpu::AttentionSlice slice{.rows = static_cast<int>(tokens.size()), .blocks = blocks};
    const ForwardBatch batch{.tokens = tokens,
                             .positions = std::span(positions).first(tokens.size()),
                             .slices = {&slice, 1}};
    forward.embed(batch);
    forward.run_layers(batch, {0, 2});
    for (const float value : forward.residual(batch.rows())) {
      ASSERT_EQ(*expected++, value);
    }
  }
  EXPECT_EQ(expected, got.end());
}

TEST(LayerTensors, KeepAWindowOnlyWhereTheLayerHasOne) {
  const TemporaryDirectory directory;
  ModelSpec spec = two_layer_spec();
  spec.attention.sliding_window = 8;
  spec.attention.windowed = {false, true};
  write_hf_checkpoint(directory.path(), spec);
  const auto checkpoint = opened(directory.path());
  EXPECT_EQ(LayerTensors(*checkpoint, 0).spec().attention.sliding_window, 0);
  EXPECT_EQ(LayerTensors(*checkpoint, 1).spec().attention.sliding_window, 8);
  EXPECT_TRUE(LayerTensors(*checkpoint, 1).spec().attention.windowed.empty());
}

}  // namespace
}  // namespace protean
