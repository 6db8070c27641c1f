// Compares a GGUF of mixed types, each half of a layer at the precision that holds it, with the
// reference over the file's dequantised values.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "cost/memory.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/reference/reference_model.h"
#include "tests/reference/served_model.h"

namespace protean {
namespace {

// Has rows of whole blocks of 256.
ModelSpec spec_of_whole_blocks() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = 8;
  spec.hidden = 256;
  spec.ffn = 512;
  spec.vocab = 300;
  spec.max_context = 256;
  spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 32};
  return spec;
}

class MixedTypes : public testing::Test {
 protected:
  void open(GgufType type, GgufType more) {
    const auto path = directory_.path() / "mixed.gguf";
    write_gguf_checkpoint(path, spec_of_whole_blocks(), {.type = type, .more = more});
    auto opened = open_checkpoint(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    checkpoint_ = std::move(*opened);
    for (int i = 0; i < 24; ++i) {
      tokens_.push_back((i * 37 + 11) % checkpoint_->spec().vocab);
    }
    reference_ = ReferenceModel(*checkpoint_, Precision::kF32).logits(tokens_);
  }

  // Returns the root mean square of all logits' errors, relative to that of the logits.
  double error_at(const std::vector<LayerPrecision>& layers) const {
    ServedModel served(*checkpoint_, {.layers = layers});
    TestSequence sequence{.tokens = tokens_, .blocks = {0, 1}};
    served.run(sequence, {1});
    double squared_error = 0;
    double squares = 0;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const std::vector<float>& got = sequence.logits.at(static_cast<int>(i));
      for (std::size_t id = 0; id < got.size(); ++id) {
        squared_error += std::pow(reference_[i][id] - double{got[id]}, 2);
        squares += std::pow(reference_[i][id], 2);
      }
    }
    return std::sqrt(squared_error / squares);
  }
  std::vector<LayerPrecision> all(Precision precision) const {
    return std::vector<LayerPrecision>(8, {precision, precision});
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<double>> reference_;
};

TEST_F(MixedTypes, HalvesOfFourBitsLoseNoMoreThanAtEight) {
  ASSERT_NO_FATAL_FAILURE(open(GgufType::kQ4_K, GgufType::kQ6_K));
  const std::vector<LayerPrecision>& mixed = checkpoint_->spec().stored.layers;
  ASSERT_EQ(mixed.size(), 8U);
  const double as_stored = error_at(mixed);
  const double eight = error_at(all(Precision::kW8));
  const double four = error_at(all(Precision::kW4));
  EXPECT_LE(eight, 2.5e-2);
  EXPECT_LE(as_stored, eight);
  EXPECT_GE(four, 2 * as_stored) << "Q6_K at 4 bits is to be told from it";
}

TEST_F(MixedTypes, FloatsBesideIntegersStayFloats) {
  ASSERT_NO_FATAL_FAILURE(open(GgufType::kQ4_0, GgufType::kBf16));
  const double as_stored = error_at(checkpoint_->spec().stored.layers);
  const double floats = error_at(all(Precision::kBf16));
  EXPECT_LE(as_stored, floats);
}

}  // namespace
}  // namespace protean
