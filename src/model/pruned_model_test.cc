#include "model/pruned_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "cost/pruned_spec.h"
#include "model/architecture.h"
#include "model/calibration.h"
#include "model/checkpoint_writer.h"
#include "model/hf_config_writer.h"
#include "model/layer_quantizer.h"
#include "model/model_copy_for_test.h"
#include "model/pruned_checkpoint.h"
#include "model/synthetic_checkpoint.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

constexpr Pruning kTwoOfFour = {.kind = PruningKind::kTwoOfFour};
constexpr Pruning kHalf = {.kind = PruningKind::kStructured, .percent = 50};

// Two query heads for each KV head, biases, and more neurons than a block.
ModelSpec grouped_spec() {
  ModelSpec spec;
  spec.architecture = "qwen2";
  spec.layers = 2;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 300;
  spec.max_context = 256;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 32, .qkv_bias = true};
  return spec;
}

// A model of which every other query head and every third neuron add nothing to the outputs.
class WithIdleNeurons final : public SyntheticCheckpoint {
 public:
  using SyntheticCheckpoint::SyntheticCheckpoint;

  static bool idle_neuron(std::int64_t neuron) { return neuron % 3 == 1; }
  static bool idle_head(std::int64_t head) { return head % 2 == 0; }

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    SyntheticCheckpoint::read_rows(role, layer, row, count, out);
    const std::int64_t width = row_length(role);
    for (std::int64_t i = 0; i < count * width; ++i) {
      const std::int64_t column = i % width;
      const bool idle = role == TensorRole::kDown
                            ? idle_neuron(column)
                            : role == TensorRole::kAttentionOutput &&
                                  idle_head(column / spec().attention.head_dim);
      out[i] = idle ? 0.0F : out[i];
    }
  }
};

class PrunedModel : public testing::Test {
 protected:
  PrunedModel() { write_hf_checkpoint(source_.path(), grouped_spec()); }

  Status prune(const Pruning& pruning) {
    return write_pruned_model(team_,
                              {.source = source_.path(),
                               .target = target_.path(),
                               .pruning = pruning,
                               .sequences = random_text(grouped_spec().vocab)},
                              [](std::int64_t, std::int64_t) {});
  }

  TemporaryDirectory source_;
  TemporaryDirectory target_;
  cpu::Team team_{1};
};

TEST_F(PrunedModel, TwoOfFourKeepsTwoOfFourAndSaysSo) {
  ASSERT_TRUE(prune(kTwoOfFour).ok());
  const auto before = opened(source_.path());
  const auto after = opened(target_.path());
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->spec().stored.precision, Precision::kS24);
  EXPECT_EQ(after->spec().ffn, before->spec().ffn);
  for (int layer = 0; layer < 2; ++layer) {
    const LayerTensors dense(*before, layer);
    const LayerTensors sparse(*after, layer);
    for (const TensorRole role : kLayerMatrices) {
      const std::vector<float>& was = dense.tensor(role);
      const std::vector<float>& is = sparse.tensor(role);
      ASSERT_EQ(is.size(), was.size());
      for (std::size_t four = 0; four < is.size(); four += 4) {
        int kept = 0;
        for (std::size_t i = four; i < four + 4; ++i) {
          kept += is[i] != 0 ? 1 : 0;
          ASSERT_TRUE(is[i] == 0 || is[i] == was[i]);
        }
        ASSERT_EQ(kept, 2) << tensor_name(architecture_of(after->spec()).hf_tensors->names, role,
                                          layer);
      }
    }
  }
}

// A pruned layer computes what the layer with zeros in place of the removed weights computes.
TEST_F(PrunedModel, StructuredComputesWhatZerosWould) {
  const ModelSpec spec = grouped_spec();
  const auto original = std::make_shared<WithIdleNeurons>(spec);
  const ModelSpec pruned = pruned_spec(spec, kHalf);
  ASSERT_EQ(pruned.attention.heads, 2);
  ASSERT_EQ(pruned.ffn, 32);
  KeptWeights kept{.heads = {1, 3}, .kv_heads = {0, 1}, .neurons = {}};
  for (int neuron = 0; std::ssize(kept.neurons) < pruned.ffn; ++neuron) {
    if (!WithIdleNeurons::idle_neuron(neuron)) {
      kept.neurons.push_back(neuron);
    }
  }
  // 85 neurons are not idle, so others are removed too: zeros are in their place.
  const PrunedCheckpoint smaller(original, kHalf, {kept, kept});
  class Zeroed final : public SyntheticCheckpoint {
   public:
    Zeroed(const ModelSpec& spec, int last) : SyntheticCheckpoint(spec), last_(last) {}
    void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                   float* out) const override {
      WithIdleNeurons(spec()).read_rows(role, layer, row, count, out);
      for (std::int64_t i = 0; role == TensorRole::kDown && i < count * spec().ffn; ++i) {
        out[i] = i % spec().ffn > last_ ? 0.0F : out[i];
      }
    }

   private:
    int last_;
  };
  const std::vector<float> want = outputs_of(team_, Zeroed(spec, kept.neurons.back()));
  const std::vector<float> got = outputs_of(team_, smaller);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 2e-2 * (1 + std::abs(want[i]))) << i;
  }
}

TEST_F(PrunedModel, StructuredIsASmallerOrdinaryModel) {
  ASSERT_TRUE(prune(kHalf).ok());
  const auto after = opened(target_.path());
  ASSERT_NE(after, nullptr);
  const ModelSpec pruned = pruned_spec(grouped_spec(), kHalf);
  EXPECT_EQ(after->spec().attention.heads, pruned.attention.heads);
  EXPECT_EQ(after->spec().attention.kv_heads, 2);
  EXPECT_EQ(after->spec().ffn, pruned.ffn);
  EXPECT_EQ(after->spec().stored.precision, Precision::kBf16);
  for (const float value : outputs_of(team_, *after)) {
    ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(PrunedModel, IdleHeadsAndNeuronsAreChosenByTheCalibrationText) {
  const ModelSpec spec = grouped_spec();
  TemporaryDirectory idle;
  write_hf_checkpoint(idle.path(), spec);
  const WithIdleNeurons original(spec);
  std::filesystem::remove(idle.path() / "model.safetensors");
  ASSERT_TRUE(write_safetensors(original, architecture_of(spec).hf_tensors->names,
                                idle.path() / "model.safetensors",
                                [](std::int64_t, std::int64_t) {})
                  .ok());
  ASSERT_TRUE(write_pruned_model(team_,
                                 {.source = idle.path(),
                                  .target = target_.path(),
                                  .pruning = kHalf,
                                  .sequences = random_text(spec.vocab)},
                                 [](std::int64_t, std::int64_t) {})
                  .ok());
  const auto after = opened(target_.path());
  const LayerTensors layer(*after, 1);
  const LayerTensors was(original, 1);
  // No column of the down projection or of the attention's output is all zeros.
  for (const TensorRole role : {TensorRole::kDown, TensorRole::kAttentionOutput}) {
    const std::vector<float>& weights = layer.tensor(role);
    const std::int64_t width = layer.width(role);
    for (std::int64_t column = 0; column < width; ++column) {
      double size = 0;
      for (std::int64_t row = 0; row < spec.hidden; ++row) {
        size += std::abs(weights[static_cast<std::size_t>(row * width + column)]);
      }
      EXPECT_GT(size, 0) << column;
    }
  }
  // Rows of queries are those of heads 1 and 3.
  const std::size_t head = 32 * 64;
  const std::vector<float>& queries = layer.tensor(TensorRole::kQuery);
  const std::vector<float>& all = was.tensor(TensorRole::kQuery);
  EXPECT_NEAR(queries[0], all[head], 0.01);
  EXPECT_NEAR(queries[head + 5], all[3 * head + 5], 0.01);
}

TEST_F(PrunedModel, APrunedModelIsNotPrunedAgain) {
  ASSERT_TRUE(prune(kTwoOfFour).ok());
  TemporaryDirectory again;
  const Status status = write_pruned_model(team_,
                                           {.source = target_.path(),
                                            .target = again.path(),
                                            .pruning = kTwoOfFour,
                                            .sequences = random_text(300)},
                                           [](std::int64_t, std::int64_t) {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("is pruned already"), std::string::npos);
}

}  // namespace
}  // namespace protean
