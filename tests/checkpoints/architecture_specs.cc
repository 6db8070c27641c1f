#include <cmath>

#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

constexpr int kVocab = 288;  // enough for an embedded byte vocabulary

ModelSpec llama(const AttentionSpec& attention) {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = 2;
  spec.hidden = 48;
  spec.ffn = 104;
  spec.vocab = kVocab;
  spec.max_context = 256;
  spec.attention = attention;
  return spec;
}

ModelSpec llama3_scaled() {
  ModelSpec spec = llama({.heads = 6, .kv_heads = 2, .head_dim = 8});
  spec.rope = {.theta = 500000.0,
               .scaling = RopeScaling::kLlama3,
               .factor = 8.0,
               .low_freq_factor = 1.0,
               .high_freq_factor = 4.0,
               .original_context = 64};
  return spec;
}

ModelSpec linearly_scaled() {
  ModelSpec spec = llama({.heads = 2, .kv_heads = 1, .head_dim = 24});
  spec.rope.scaling = RopeScaling::kLinear;
  spec.rope.factor = 2.5;
  spec.norm_eps = 1e-6F;
  return spec;
}

ModelSpec tied_llama() {
  ModelSpec spec = llama({.heads = 2, .kv_heads = 2, .head_dim = 64});
  spec.tied_embeddings = true;
  spec.layers = 1;
  return spec;
}

ModelSpec mistral() {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 2, .head_dim = 16, .sliding_window = 24});
  spec.architecture = "mistral";
  return spec;
}

ModelSpec qwen2() {
  ModelSpec spec = llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .qkv_bias = true});
  spec.architecture = "qwen2";
  spec.norm_eps = 1e-6F;
  spec.rope.theta = 1000000.0;
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec partly_windowed_qwen2() {
  ModelSpec spec = qwen2();
  spec.layers = 3;
  spec.tied_embeddings = false;
  spec.attention.sliding_window = 20;
  spec.attention.windowed = {false, true, true};
  return spec;
}

ModelSpec qwen3(bool tied) {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 2, .head_dim = 24, .qk_norm = true});
  spec.architecture = "qwen3";
  spec.norm_eps = 1e-6F;
  spec.rope.theta = 1000000.0;
  spec.tied_embeddings = tied;
  return spec;
}

ModelSpec biased_llama() {
  return llama({.heads = 3, .kv_heads = 3, .head_dim = 16, .qkv_bias = true, .output_bias = true});
}

ModelSpec biased_mlp_llama() {
  ModelSpec spec = llama({.heads = 6, .kv_heads = 2, .head_dim = 8});
  spec.mlp.bias = true;
  return spec;
}

ModelSpec yarn_qwen2() {
  ModelSpec spec = qwen2();
  spec.rope.scaling = RopeScaling::kYarn;
  spec.rope.factor = 4.0;
  spec.rope.original_context = 64;
  spec.rope.magnitude = 0.1 * std::log(4.0) + 1.0;
  return spec;
}

constexpr NormSpec kBeforeAndAfter{.after = true};
constexpr NormSpec kLayerNorm{.layer_norm = true, .bias = true};

ModelSpec gemma2() {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 2, .head_dim = 24, .score_cap = 2.0F});
  spec.architecture = "gemma2";
  spec.layers = 3;
  spec.attention.sliding_window = 20;
  spec.attention.windowed = {true, false, true};
  spec.mlp.activation = Activation::kGeluTanh;
  spec.norms = kBeforeAndAfter;
  spec.multipliers = {.embedding = std::sqrt(48.0F), .logit_cap = 12.0F};
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec gemma3() {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 1, .head_dim = 16, .qk_norm = true});
  spec.architecture = "gemma3_text";
  spec.layers = 7;
  spec.attention.sliding_window = 20;
  spec.attention.windowed = {true, true, true, true, true, false, true};
  spec.mlp.activation = Activation::kGeluTanh;
  spec.norms = kBeforeAndAfter;
  spec.multipliers.embedding = std::sqrt(48.0F);
  spec.rope = {.theta = 1e6, .scaling = RopeScaling::kLinear, .factor = 8.0};
  spec.windowed_rope = {.theta = 10000.0};
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec phi3(bool scaled) {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 2, .head_dim = 16});
  spec.architecture = "phi3";
  if (!scaled) {
    spec.attention.sliding_window = 30;
    return spec;
  }
  spec.rope.rotated = 12;
  spec.rope.scaling = RopeScaling::kLong;
  spec.rope.original_context = 64;  // of max_context 256
  spec.rope.divisors = {1.0F, 1.0F, 1.1F, 1.2F, 1.3F, 1.5F};
  spec.rope.long_divisors = {1.0F, 1.5F, 2.0F, 3.0F, 4.5F, 9.0F};
  spec.rope.magnitude = std::sqrt(1.0 + std::log(4.0) / std::log(64.0));
  return spec;
}

ModelSpec smollm3() {
  ModelSpec spec = llama({.heads = 6, .kv_heads = 2, .head_dim = 8});
  spec.architecture = "smollm3";
  spec.layers = 5;
  spec.attention.rotated = {true, true, true, false, true};
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec granite() {
  ModelSpec spec = llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .scale = 0.2F});
  spec.architecture = "granite";
  spec.multipliers = {.embedding = 12.0F, .residual = 0.22F, .logits = 1.0F / 8.0F};
  return spec;
}

ModelSpec olmo2() {
  ModelSpec spec = llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .qk_norm = true});
  spec.architecture = "olmo2";
  spec.attention.qk_norm_over_heads = true;
  spec.norms = {.before = false, .after = true};
  return spec;
}

ModelSpec glm(bool fourth) {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 2, .head_dim = 16, .qkv_bias = true});
  spec.architecture = fourth ? "glm4" : "glm";
  spec.rope.pairing = RopePairing::kAdjacent;
  spec.rope.rotated = 8;
  spec.norms.after = fourth;
  return spec;
}

ModelSpec cohere(bool second) {
  ModelSpec spec = llama({.heads = 4, .kv_heads = 2, .head_dim = 16});
  spec.architecture = second ? "cohere2" : "cohere";
  spec.rope.pairing = RopePairing::kAdjacent;
  spec.norms.layer_norm = true;
  spec.parallel_halves = true;
  spec.multipliers.logits = 0.25F;
  spec.tied_embeddings = true;
  if (second) {
    spec.layers = 5;
    spec.attention.sliding_window = 20;
    spec.attention.windowed = spec.attention.rotated = {true, true, true, false, true};
  }
  return spec;
}

ModelSpec stablelm() {
  ModelSpec spec = llama({.heads = 2, .kv_heads = 2, .head_dim = 32, .qkv_bias = true});
  spec.architecture = "stablelm";
  spec.rope.rotated = 8;
  spec.norms = kLayerNorm;
  return spec;
}

ModelSpec falcon(int heads, int kv_heads) {
  ModelSpec spec = llama({.heads = heads, .kv_heads = kv_heads, .head_dim = 48 / heads});
  spec.architecture = "falcon";
  spec.mlp = {.activation = Activation::kGelu, .gated = false};
  spec.norms = kLayerNorm;
  spec.parallel_halves = true;
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec gptj() {
  ModelSpec spec = llama({.heads = 3, .kv_heads = 3, .head_dim = 16});
  spec.architecture = "gptj";
  spec.rope.pairing = RopePairing::kAdjacent;
  spec.rope.rotated = 8;
  spec.mlp = {.activation = Activation::kGeluTanh, .gated = false, .bias = true};
  spec.norms = kLayerNorm;
  spec.parallel_halves = true;
  spec.output_bias = true;
  return spec;
}

ModelSpec gpt2() {
  ModelSpec spec =
      llama({.heads = 6, .kv_heads = 6, .head_dim = 8, .qkv_bias = true, .output_bias = true});
  spec.architecture = "gpt2";
  spec.ffn = 192;
  spec.max_context = 512;
  spec.attention.rotated = {false, false};
  spec.mlp = {.activation = Activation::kGeluTanh, .gated = false, .bias = true};
  spec.norms = kLayerNorm;
  spec.learned_positions = true;
  spec.tied_embeddings = true;
  return spec;
}

}  // namespace

std::vector<NamedSpec> architecture_specs() {
  return {{"llama2_mha", llama({.heads = 6, .kv_heads = 6, .head_dim = 8})},
          {"llama2_gqa", llama({.heads = 4, .kv_heads = 2, .head_dim = 64})},
          {"llama3_scaled", llama3_scaled()},
          {"llama_linear_scaled", linearly_scaled()},
          {"llama_tied", tied_llama()},
          {"llama_biased", biased_llama()},
          {"mistral_windowed", mistral()},
          {"qwen2_bias", qwen2()},
          {"qwen2_partly_windowed", partly_windowed_qwen2()},
          {"qwen3_qk_norm", qwen3(false)},
          {"qwen3_tied", qwen3(true)},
          {"llama_biased_mlp", biased_mlp_llama()},
          {"qwen2_yarn", yarn_qwen2()},
          {"gemma2", gemma2()},
          {"gemma3", gemma3()},
          {"phi3_windowed", phi3(false)},
          {"phi3_longrope", phi3(true)},
          {"smollm3", smollm3()},
          {"granite", granite()},
          {"olmo2", olmo2()},
          {"glm4", glm(true)},
          {"glm", glm(false)},
          {"cohere2", cohere(true)},
          {"cohere", cohere(false)},
          {"stablelm", stablelm()},
          {"falcon_one_kv_head", falcon(6, 1)},
          {"falcon_two_norms", falcon(6, 2)},
          {"gptj", gptj()},
          {"gpt2", gpt2()}};
}

}  // namespace protean
