// Tests every feature of a spec, alone and together, on weights without a file format.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "model/synthetic_checkpoint.h"
#include "tests/reference/forward_check.h"

namespace protean {
namespace {

ModelSpec plain_spec() {
  ModelSpec spec;
  spec.architecture = "synthetic";
  spec.layers = 3;
  spec.hidden = 48;
  spec.ffn = 76;
  spec.vocab = 101;
  spec.max_context = 512;
  spec.attention = {.heads = 6, .kv_heads = 2, .head_dim = 16};
  return spec;
}

struct Feature {
  std::string name;
  void (*apply)(ModelSpec&);
};

void PrintTo(const Feature& feature, std::ostream* out) {
  *out << feature.name;
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"plain", [](ModelSpec&) {}},
      {"tied", [](ModelSpec& s) { s.tied_embeddings = true; }},
      {"bias", [](ModelSpec& s) { s.attention.qkv_bias = s.attention.output_bias = true; }},
      {"qk_norm", [](ModelSpec& s) { s.attention.qk_norm = true; }},
      {"window", [](ModelSpec& s) { s.attention.sliding_window = 20; }},
      {"late_window",
       [](ModelSpec& s) {
         s.attention.sliding_window = 5;
         s.attention.first_windowed_layer = 2;
       }},
      {"adjacent", [](ModelSpec& s) { s.rope.pairing = RopePairing::kAdjacent; }},
      {"linear_rope",
       [](ModelSpec& s) {
         s.rope.scaling = RopeScaling::kLinear;
         s.rope.factor = 4.0;
       }},
      {"llama3_rope",
       [](ModelSpec& s) {
         s.rope = {.theta = 500.0, .scaling = RopeScaling::kLlama3, .factor = 8.0};
         s.rope.original_context = 128;
       }},
      {"rope_divisors",
       [](ModelSpec& s) { s.rope.divisors = {1.0F, 1.0F, 1.5F, 2.0F, 4.0F, 8.0F, 8.0F, 8.0F}; }},
      {"multi_query", [](ModelSpec& s) { s.attention.kv_heads = 1; }},
      {"multi_head", [](ModelSpec& s) { s.attention.kv_heads = s.attention.heads; }},
      {"wide_heads", [](ModelSpec& s) { s.attention.head_dim = 40; }},
  };
  return all;
}

class SyntheticForward : public testing::TestWithParam<Feature> {};

TEST_P(SyntheticForward, F32EqualsTheReference) {
  ModelSpec spec = plain_spec();
  GetParam().apply(spec);
  const SyntheticCheckpoint checkpoint(spec);
  ForwardCheck(checkpoint, Precision::kF32).everything();
}

TEST_P(SyntheticForward, Bf16IsNearTheReference) {
  ModelSpec spec = plain_spec();
  GetParam().apply(spec);
  const SyntheticCheckpoint checkpoint(spec);
  ForwardCheck(checkpoint, Precision::kBf16).everything();
}

// Padding changes nothing (AMOEBA section 3.2).
TEST_P(SyntheticForward, F32InShardsEqualsTheReference) {
  ModelSpec spec = plain_spec();
  GetParam().apply(spec);
  if (spec.attention.kv_heads % 2 != 0) {
    GTEST_SKIP() << "its KV heads are not to be divided";
  }
  const SyntheticCheckpoint checkpoint(spec);
  ForwardCheck(checkpoint, Precision::kF32, 2).everything();
}

INSTANTIATE_TEST_SUITE_P(Features, SyntheticForward, testing::ValuesIn(features()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace protean
