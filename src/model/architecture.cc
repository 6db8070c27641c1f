#include "model/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace protean {
namespace {

// Each list is in the order of TensorRole.
constexpr TensorNames kHuggingFaceTensors = {
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.{}.input_layernorm.weight",
    "model.layers.{}.self_attn.q_proj.weight",
    "model.layers.{}.self_attn.k_proj.weight",
    "model.layers.{}.self_attn.v_proj.weight",
    "model.layers.{}.self_attn.o_proj.weight",
    "model.layers.{}.self_attn.q_proj.bias",
    "model.layers.{}.self_attn.k_proj.bias",
    "model.layers.{}.self_attn.v_proj.bias",
    "model.layers.{}.self_attn.o_proj.bias",
    "model.layers.{}.self_attn.q_norm.weight",
    "model.layers.{}.self_attn.k_norm.weight",
    "model.layers.{}.post_attention_layernorm.weight",
    "model.layers.{}.mlp.gate_proj.weight",
    "model.layers.{}.mlp.up_proj.weight",
    "model.layers.{}.mlp.down_proj.weight",
};

constexpr TensorNames kGgufTensors = {
    "token_embd.weight",         "output_norm.weight",        "output.weight",
    "blk.{}.attn_norm.weight",   "blk.{}.attn_q.weight",      "blk.{}.attn_k.weight",
    "blk.{}.attn_v.weight",      "blk.{}.attn_output.weight", "blk.{}.attn_q.bias",
    "blk.{}.attn_k.bias",        "blk.{}.attn_v.bias",        "blk.{}.attn_output.bias",
    "blk.{}.attn_q_norm.weight", "blk.{}.attn_k_norm.weight", "blk.{}.ffn_norm.weight",
    "blk.{}.ffn_gate.weight",    "blk.{}.ffn_up.weight",      "blk.{}.ffn_down.weight",
};

constexpr ArchitectureRow kRows[] = {
    {.name = "llama",
     .hf_class = "LlamaForCausalLM",
     .gguf_name = "llama",
     .bias_in_config = true,
     .gguf_pairing = RopePairing::kAdjacent,
     .hf_tensors = &kHuggingFaceTensors,
     .gguf_tensors = &kGgufTensors},
    {.name = "mistral",
     .hf_class = "MistralForCausalLM",
     .window = WindowRule::kWhenSet,
     .gguf_pairing = RopePairing::kAdjacent,
     .hf_tensors = &kHuggingFaceTensors,
     .gguf_tensors = &kGgufTensors},
    {.name = "qwen2",
     .hf_class = "Qwen2ForCausalLM",
     .gguf_name = "qwen2",
     .qkv_bias = true,
     .window = WindowRule::kWhenEnabled,
     .hf_tensors = &kHuggingFaceTensors,
     .gguf_tensors = &kGgufTensors},
    {.name = "qwen3",
     .hf_class = "Qwen3ForCausalLM",
     .gguf_name = "qwen3",
     .bias_in_config = true,
     .qk_norm = true,
     .window = WindowRule::kWhenEnabled,
     .hf_tensors = &kHuggingFaceTensors,
     .gguf_tensors = &kGgufTensors},
};

}  // namespace

std::span<const ArchitectureRow> architectures() {
  return kRows;
}

const ArchitectureRow& architecture_of(const ModelSpec& spec) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const auto& known) {
    return known.name == spec.architecture;
  });
  check(row != std::end(kRows), "a valid spec has a known architecture");
  return *row;
}

std::string tensor_name(const TensorNames& names, TensorRole role, int layer) {
  return fmt::format(fmt::runtime(names[static_cast<std::size_t>(role)]), layer);
}

std::vector<NeededTensor> needed_tensors(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const std::int64_t hidden = spec.hidden;
  const std::int64_t queries = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t keys = std::int64_t{attention.kv_heads} * attention.head_dim;
  std::vector<NeededTensor> needed = {{TensorRole::kEmbedding, 0, spec.vocab, hidden},
                                      {TensorRole::kFinalNorm, 0, hidden}};
  if (!spec.tied_embeddings) {
    needed.push_back({TensorRole::kOutput, 0, spec.vocab, hidden});
  }
  for (int layer = 0; layer < spec.layers; ++layer) {
    needed.insert(needed.end(), {{TensorRole::kAttentionNorm, layer, hidden},
                                 {TensorRole::kQuery, layer, queries, hidden},
                                 {TensorRole::kKey, layer, keys, hidden},
                                 {TensorRole::kValue, layer, keys, hidden},
                                 {TensorRole::kAttentionOutput, layer, hidden, queries},
                                 {TensorRole::kMlpNorm, layer, hidden},
                                 {TensorRole::kGate, layer, spec.ffn, hidden},
                                 {TensorRole::kUp, layer, spec.ffn, hidden},
                                 {TensorRole::kDown, layer, hidden, spec.ffn}});
    if (attention.qkv_bias) {
      needed.insert(needed.end(), {{TensorRole::kQueryBias, layer, queries},
                                   {TensorRole::kKeyBias, layer, keys},
                                   {TensorRole::kValueBias, layer, keys}});
    }
    if (attention.output_bias) {
      needed.push_back({TensorRole::kAttentionOutputBias, layer, hidden});
    }
    if (attention.qk_norm) {
      needed.insert(needed.end(), {{TensorRole::kQueryNorm, layer, attention.head_dim},
                                   {TensorRole::kKeyNorm, layer, attention.head_dim}});
    }
  }
  return needed;
}

}  // namespace protean
