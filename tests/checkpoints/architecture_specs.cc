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
  spec.attention.first_windowed_layer = 1;
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
          {"qwen3_tied", qwen3(true)}};
}

}  // namespace protean
