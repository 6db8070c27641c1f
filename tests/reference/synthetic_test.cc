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

const std::vector<Feature>& attention_features() {
  static const std::vector<Feature> all = {
      {"bias", [](ModelSpec& s) { s.attention.qkv_bias = s.attention.output_bias = true; }},
      {"qk_norm", [](ModelSpec& s) { s.attention.qk_norm = true; }},
      {"window", [](ModelSpec& s) { s.attention.sliding_window = 20; }},
      {"late_window",
       [](ModelSpec& s) {
         s.attention.sliding_window = 5;
         s.attention.windowed = {false, false, true};
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
      {"norm_over_heads",
       [](ModelSpec& s) { s.attention.qk_norm = s.attention.qk_norm_over_heads = true; }},
      {"scale_and_cap",
       [](ModelSpec& s) {
         s.attention.scale = 0.4F;
         s.attention.score_cap = 0.7F;
       }},
      {"some_layers_still",
       [](ModelSpec& s) {
         s.attention.rotated = {true, false, true};
       }},
      {"partly_rotated", [](ModelSpec& s) { s.rope.rotated = 6; }},
      {"partly_rotated_adjacent",
       [](ModelSpec& s) {
         s.rope.rotated = 10;
         s.rope.pairing = RopePairing::kAdjacent;
       }},
      {"two_ropes",
       [](ModelSpec& s) {
         s.attention.sliding_window = 20;
         s.attention.windowed = {true, false, true};
         s.windowed_rope = {.theta = 100.0};
       }},
      {"yarn",
       [](ModelSpec& s) {
         s.rope = {.scaling = RopeScaling::kYarn, .factor = 8.0, .magnitude = 1.2};
         s.rope.original_context = 32;
       }},
      {"longrope",
       [](ModelSpec& s) {
         s.rope.scaling = RopeScaling::kLong;
         s.rope.original_context = 511;  // fewer than are served
         s.rope.divisors = std::vector<float>(8, 100.0F);
         s.rope.long_divisors = {1.0F, 1.0F, 1.5F, 2.0F, 4.0F, 8.0F, 8.0F, 8.0F};
       }},
      {"shortrope",
       [](ModelSpec& s) {
         s.rope.scaling = RopeScaling::kLong;
         s.rope.original_context = 512;  // as many as are served
         s.rope.divisors = {1.0F, 1.0F, 1.5F, 2.0F, 4.0F, 8.0F, 8.0F, 8.0F};
         s.rope.long_divisors = std::vector<float>(8, 100.0F);
       }},
      {"wide_heads", [](ModelSpec& s) { s.attention.head_dim = 40; }},
  };
  return all;
}

const std::vector<Feature>& other_features() {
  static const std::vector<Feature> all = {
      {"plain", [](ModelSpec&) {}},
      {"tied", [](ModelSpec& s) { s.tied_embeddings = true; }},
      {"multi_head", [](ModelSpec& s) { s.attention.kv_heads = s.attention.heads; }},
      {"geglu", [](ModelSpec& s) { s.mlp.activation = Activation::kGeluTanh; }},
      {"plain_gelu",
       [](ModelSpec& s) {
         s.mlp = {Activation::kGelu, false, false};
       }},
      {"plain_relu_biased",
       [](ModelSpec& s) {
         s.mlp = {Activation::kRelu, false, true};
       }},
      {"swiglu_biased", [](ModelSpec& s) { s.mlp.bias = true; }},
      {"layer_norm", [](ModelSpec& s) { s.norms.layer_norm = true; }},
      {"layer_norm_biased", [](ModelSpec& s) { s.norms.layer_norm = s.norms.bias = true; }},
      {"norms_after", [](ModelSpec& s) { s.norms = {.before = false, .after = true}; }},
      {"norms_around", [](ModelSpec& s) { s.norms.after = true; }},
      {"multipliers",
       [](ModelSpec& s) {
         s.multipliers = {.embedding = 3.0F, .residual = 0.3F, .logits = 0.5F, .logit_cap = 2.0F};
       }},
      {"parallel_halves", [](ModelSpec& s) { s.parallel_halves = true; }},
      {"parallel_biased",
       [](ModelSpec& s) {
         s.parallel_halves = s.attention.output_bias = s.mlp.bias = s.output_bias = true;
       }},
      {"learned_positions",
       [](ModelSpec& s) {
         s.learned_positions = true;
         s.attention.rotated = {false, false, false};
         s.multipliers.embedding = 2.0F;
       }},
  };
  return all;
}

std::vector<Feature> features() {
  std::vector<Feature> all = other_features();
  all.insert(all.end(), attention_features().begin(), attention_features().end());
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
  if (!can_shard(spec, 2)) {
    GTEST_SKIP() << "it cannot be divided";
  }
  const SyntheticCheckpoint checkpoint(spec);
  ForwardCheck(checkpoint, Precision::kF32, 2).everything();
}

INSTANTIATE_TEST_SUITE_P(Features, SyntheticForward, testing::ValuesIn(features()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace protean
