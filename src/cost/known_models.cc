#include "cost/known_models.h"

#include <fmt/format.h>

#include <array>

#include "base/same_letters.h"

namespace protean {
namespace {

RopeSpec llama3_rope(double factor) {
  return {.theta = 500000.0,
          .scaling = RopeScaling::kLlama3,
          .factor = factor,
          .low_freq_factor = 1.0,
          .high_freq_factor = 4.0,
          .original_context = 8192};
}

AttentionSpec attention_of(int heads, int kv_heads, int head_dim, bool bias = false) {
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .qkv_bias = bias};
}

ModelSpec llama(int layers, int hidden, int ffn, const AttentionSpec& attention) {
  return {.architecture = "llama",
          .layers = layers,
          .hidden = hidden,
          .ffn = ffn,
          .vocab = 128256,
          .max_context = 131072,
          .norm_eps = 1e-5F,
          .attention = attention,
          .rope = llama3_rope(8.0)};
}

ModelSpec llama_1b() {
  ModelSpec spec = llama(16, 2048, 8192, attention_of(32, 8, 64));
  spec.tied_embeddings = true;
  spec.rope = llama3_rope(32.0);
  return spec;
}

ModelSpec small_llama() {
  ModelSpec spec = llama(20, 768, 2048, attention_of(12, 4, 64));
  spec.vocab = 32000;
  spec.max_context = 8192;
  spec.tied_embeddings = true;
  spec.rope = {.theta = 10000.0};
  return spec;
}

ModelSpec qwen(int layers, int hidden, int ffn, const AttentionSpec& attention) {
  return {.architecture = "qwen2",
          .layers = layers,
          .hidden = hidden,
          .ffn = ffn,
          .vocab = 151936,
          .max_context = 32768,
          .norm_eps = 1e-6F,
          .attention = attention,
          .rope = {.theta = 1000000.0}};
}

ModelSpec qwen_05b() {
  ModelSpec spec = qwen(24, 896, 4864, attention_of(14, 2, 64, true));
  spec.tied_embeddings = true;
  return spec;
}

// The larger models of the family have more rows in their vocabulary.
ModelSpec large_qwen(int layers, int hidden, int ffn, int heads) {
  ModelSpec spec = qwen(layers, hidden, ffn, attention_of(heads, 8, 128, true));
  spec.vocab = 152064;
  return spec;
}

ModelSpec llama_2(int layers, int hidden, int ffn, const AttentionSpec& attention) {
  ModelSpec spec = llama(layers, hidden, ffn, attention);
  spec.vocab = 32000;
  spec.max_context = 4096;
  spec.rope = {.theta = 10000.0};
  return spec;
}

// The models of iServe's evaluation whose MLP has two matrices of four times the hidden size. Their
// sizes here are those of a gated MLP, three matrices, with as many weights.
ModelSpec ungated(int layers, int hidden, int vocab, const AttentionSpec& attention) {
  constexpr int kNeuronBlock = 32;
  const int ffn = (4 * hidden * 2 / 3 + kNeuronBlock - 1) / kNeuronBlock * kNeuronBlock;
  ModelSpec spec = llama_2(layers, hidden, ffn, attention);
  spec.vocab = vocab;
  spec.max_context = 2048;
  return spec;
}

ModelSpec falcon(int layers, int hidden, const AttentionSpec& attention) {
  ModelSpec spec = ungated(layers, hidden, 65024, attention);
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec gpt_oss(int layers) {
  ModelSpec spec = llama(layers, 2880, 2880, attention_of(64, 8, 64, true));
  spec.architecture = "gpt_oss";
  spec.vocab = 201088;
  return spec;
}

}  // namespace

std::span<const KnownModel> known_models() {
  static const std::array<KnownModel, 16> models = {{
      {"llama-3.2-1b", llama_1b()},
      {"llama-3.1-8b", llama(32, 4096, 14336, attention_of(32, 8, 128))},
      {"llama-3.1-70b", llama(80, 8192, 28672, attention_of(64, 8, 128))},
      {"llama-2-7b", llama_2(32, 4096, 11008, attention_of(32, 32, 128))},
      {"llama-2-13b", llama_2(40, 5120, 13824, attention_of(40, 40, 128))},
      {"llama-2-70b", llama_2(80, 8192, 28672, attention_of(64, 8, 128))},
      {"falcon-7b", falcon(32, 4544, attention_of(71, 1, 64))},
      {"falcon-40b", falcon(60, 8192, attention_of(128, 8, 64))},
      {"gpt-j-6b", ungated(28, 4096, 50400, attention_of(16, 16, 256))},
      {"qwen2.5-0.5b", qwen_05b()},
      {"qwen2.5-14b", large_qwen(48, 5120, 13824, 40)},
      {"qwen2.5-32b", large_qwen(64, 5120, 27648, 40)},
      {"qwen2.5-72b", large_qwen(80, 8192, 29568, 64)},
      {"gpt-oss-20b", gpt_oss(24), 32},
      {"gpt-oss-120b", gpt_oss(36), 128},
      {"150m", small_llama()},
  }};
  return models;
}

Result<KnownModel> find_known_model(const std::string& name, bool dense) {
  std::string known;
  for (const KnownModel& model : known_models()) {
    if (dense && model.experts > 0) {
      continue;
    }
    if (same_letters(model.name, name)) {
      return model;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", model.name);
  }
  return make_error(ErrorCode::kInvalidArgument, "--like {} is not known: it must be one of {}",
                    name, known);
}

}  // namespace protean
