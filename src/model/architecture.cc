#include "model/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

using Role = TensorRole;
using Names = std::initializer_list<std::pair<TensorRole, std::string_view>>;

constexpr TensorNames changed(TensorNames names, Names changes) {
  for (const auto& [role, name] : changes) {
    names[static_cast<std::size_t>(role)] = name;
  }
  return names;
}

// What Llama's files call tensors; other families change or add to it. Models that also read
// pictures keep the decoder below "language_model.".
constexpr TensorNames kHf =
    changed({}, {{Role::kEmbedding, "model.embed_tokens.weight"},
                 {Role::kFinalNorm, "model.norm.weight"},
                 {Role::kFinalNormBias, "model.norm.bias"},
                 {Role::kOutput, "lm_head.weight"},
                 {Role::kOutputBias, "lm_head.bias"},
                 {Role::kAttentionNorm, "model.layers.{}.input_layernorm.weight"},
                 {Role::kAttentionNormBias, "model.layers.{}.input_layernorm.bias"},
                 {Role::kQuery, "model.layers.{}.self_attn.q_proj.weight"},
                 {Role::kKey, "model.layers.{}.self_attn.k_proj.weight"},
                 {Role::kValue, "model.layers.{}.self_attn.v_proj.weight"},
                 {Role::kAttentionOutput, "model.layers.{}.self_attn.o_proj.weight"},
                 {Role::kQueryBias, "model.layers.{}.self_attn.q_proj.bias"},
                 {Role::kKeyBias, "model.layers.{}.self_attn.k_proj.bias"},
                 {Role::kValueBias, "model.layers.{}.self_attn.v_proj.bias"},
                 {Role::kAttentionOutputBias, "model.layers.{}.self_attn.o_proj.bias"},
                 {Role::kQueryNorm, "model.layers.{}.self_attn.q_norm.weight"},
                 {Role::kKeyNorm, "model.layers.{}.self_attn.k_norm.weight"},
                 {Role::kMlpNorm, "model.layers.{}.post_attention_layernorm.weight"},
                 {Role::kMlpNormBias, "model.layers.{}.post_attention_layernorm.bias"},
                 {Role::kGate, "model.layers.{}.mlp.gate_proj.weight"},
                 {Role::kUp, "model.layers.{}.mlp.up_proj.weight"},
                 {Role::kDown, "model.layers.{}.mlp.down_proj.weight"},
                 {Role::kGateBias, "model.layers.{}.mlp.gate_proj.bias"},
                 {Role::kUpBias, "model.layers.{}.mlp.up_proj.bias"},
                 {Role::kDownBias, "model.layers.{}.mlp.down_proj.bias"}});

constexpr TensorNames kGguf =
    changed({}, {{Role::kEmbedding, "token_embd.weight"},
                 {Role::kPositions, "position_embd.weight"},
                 {Role::kFinalNorm, "output_norm.weight"},
                 {Role::kFinalNormBias, "output_norm.bias"},
                 {Role::kOutput, "output.weight"},
                 {Role::kOutputBias, "output.bias"},
                 {Role::kAttentionNorm, "blk.{}.attn_norm.weight"},
                 {Role::kAttentionNormBias, "blk.{}.attn_norm.bias"},
                 {Role::kQuery, "blk.{}.attn_q.weight"},
                 {Role::kKey, "blk.{}.attn_k.weight"},
                 {Role::kValue, "blk.{}.attn_v.weight"},
                 {Role::kAttentionOutput, "blk.{}.attn_output.weight"},
                 {Role::kQueryBias, "blk.{}.attn_q.bias"},
                 {Role::kKeyBias, "blk.{}.attn_k.bias"},
                 {Role::kValueBias, "blk.{}.attn_v.bias"},
                 {Role::kAttentionOutputBias, "blk.{}.attn_output.bias"},
                 {Role::kQueryNorm, "blk.{}.attn_q_norm.weight"},
                 {Role::kKeyNorm, "blk.{}.attn_k_norm.weight"},
                 {Role::kMlpNorm, "blk.{}.ffn_norm.weight"},
                 {Role::kMlpNormBias, "blk.{}.ffn_norm.bias"},
                 {Role::kGate, "blk.{}.ffn_gate.weight"},
                 {Role::kUp, "blk.{}.ffn_up.weight"},
                 {Role::kDown, "blk.{}.ffn_down.weight"},
                 {Role::kGateBias, "blk.{}.ffn_gate.bias"},
                 {Role::kUpBias, "blk.{}.ffn_up.bias"},
                 {Role::kDownBias, "blk.{}.ffn_down.bias"},
                 {Role::kAttentionPostNorm, "blk.{}.post_attention_norm.weight"},
                 {Role::kMlpPostNorm, "blk.{}.post_ffw_norm.weight"}});

constexpr TensorNames fused_qkv(const TensorNames& names, std::string_view weight,
                                std::string_view bias) {
  return changed(names, {{Role::kQuery, weight},
                         {Role::kKey, weight},
                         {Role::kValue, weight},
                         {Role::kQueryBias, bias},
                         {Role::kKeyBias, bias},
                         {Role::kValueBias, bias}});
}

constexpr TensorNames fused_gate(const TensorNames& names, std::string_view weight) {
  return changed(names, {{Role::kGate, weight}, {Role::kUp, weight}});
}

constexpr TensorLayout kLlamaHf{kHf};
constexpr TensorLayout kLlamaGguf{kGguf};
constexpr TensorLayout kFusedGguf{
    fused_qkv(kGguf, "blk.{}.attn_qkv.weight", "blk.{}.attn_qkv.bias")};
// One norm before both halves.
constexpr TensorLayout kOneNormGguf{changed(
    kGguf,
    {{Role::kMlpNorm, "blk.{}.attn_norm.weight"}, {Role::kMlpNormBias, "blk.{}.attn_norm.bias"}})};
constexpr TensorLayout kOneNormHf{
    changed(kHf, {{Role::kMlpNorm, "model.layers.{}.input_layernorm.weight"},
                  {Role::kMlpNormBias, "model.layers.{}.input_layernorm.bias"}})};

constexpr TensorLayout kPhi3Hf{
    fused_gate(fused_qkv(kHf, "model.layers.{}.self_attn.qkv_proj.weight",
                         "model.layers.{}.self_attn.qkv_proj.bias"),
               "model.layers.{}.mlp.gate_up_proj.weight")};
constexpr TensorLayout kPhi3Gguf{fused_gate(kFusedGguf.names, "blk.{}.ffn_up.weight")};

constexpr TensorLayout kGemmaHf{
    changed(kHf, {{Role::kAttentionPostNorm, "model.layers.{}.post_attention_layernorm.weight"},
                  {Role::kMlpNorm, "model.layers.{}.pre_feedforward_layernorm.weight"},
                  {Role::kMlpPostNorm, "model.layers.{}.post_feedforward_layernorm.weight"}}),
    false, false, true};

constexpr TensorLayout kOlmo2Hf{
    changed(kHf, {{Role::kAttentionPostNorm, "model.layers.{}.post_attention_layernorm.weight"},
                  {Role::kMlpPostNorm, "model.layers.{}.post_feedforward_layernorm.weight"}})};

constexpr TensorLayout kGlm4Hf{fused_gate(
    changed(kHf, {{Role::kAttentionPostNorm, "model.layers.{}.post_self_attn_layernorm.weight"},
                  {Role::kMlpPostNorm, "model.layers.{}.post_mlp_layernorm.weight"}}),
    "model.layers.{}.mlp.gate_up_proj.weight")};
constexpr TensorLayout kGlm4Gguf{fused_gate(kGguf, "blk.{}.ffn_up.weight")};

constexpr TensorLayout kFalconHf{
    fused_qkv(
        changed(kHf, {{Role::kEmbedding, "transformer.word_embeddings.weight"},
                      {Role::kFinalNorm, "transformer.ln_f.weight"},
                      {Role::kFinalNormBias, "transformer.ln_f.bias"},
                      {Role::kAttentionNorm,
                       "transformer.h.{}.ln_attn.weight|transformer.h.{}.input_layernorm.weight"},
                      {Role::kAttentionNormBias,
                       "transformer.h.{}.ln_attn.bias|transformer.h.{}.input_layernorm.bias"},
                      {Role::kMlpNorm,
                       "transformer.h.{}.ln_mlp.weight|transformer.h.{}.input_layernorm.weight"},
                      {Role::kMlpNormBias,
                       "transformer.h.{}.ln_mlp.bias|transformer.h.{}.input_layernorm.bias"},
                      {Role::kAttentionOutput, "transformer.h.{}.self_attention.dense.weight"},
                      {Role::kUp, "transformer.h.{}.mlp.dense_h_to_4h.weight"},
                      {Role::kDown, "transformer.h.{}.mlp.dense_4h_to_h.weight"}}),
        "transformer.h.{}.self_attention.query_key_value.weight", ""),
    false, true};
// Files of models with two norms call that of attention attn_norm_2.
constexpr TensorLayout kFalconGguf{changed(
    kFusedGguf.names, {{Role::kAttentionNorm, "blk.{}.attn_norm_2.weight|blk.{}.attn_norm.weight"},
                       {Role::kAttentionNormBias, "blk.{}.attn_norm_2.bias|blk.{}.attn_norm.bias"},
                       {Role::kMlpNorm, "blk.{}.attn_norm.weight"},
                       {Role::kMlpNormBias, "blk.{}.attn_norm.bias"}})};

constexpr TensorLayout kGptJHf{
    changed(kHf, {{Role::kEmbedding, "transformer.wte.weight"},
                  {Role::kFinalNorm, "transformer.ln_f.weight"},
                  {Role::kFinalNormBias, "transformer.ln_f.bias"},
                  {Role::kAttentionNorm, "transformer.h.{}.ln_1.weight"},
                  {Role::kAttentionNormBias, "transformer.h.{}.ln_1.bias"},
                  {Role::kMlpNorm, "transformer.h.{}.ln_1.weight"},
                  {Role::kMlpNormBias, "transformer.h.{}.ln_1.bias"},
                  {Role::kQuery, "transformer.h.{}.attn.q_proj.weight"},
                  {Role::kKey, "transformer.h.{}.attn.k_proj.weight"},
                  {Role::kValue, "transformer.h.{}.attn.v_proj.weight"},
                  {Role::kAttentionOutput, "transformer.h.{}.attn.out_proj.weight"},
                  {Role::kUp, "transformer.h.{}.mlp.fc_in.weight"},
                  {Role::kUpBias, "transformer.h.{}.mlp.fc_in.bias"},
                  {Role::kDown, "transformer.h.{}.mlp.fc_out.weight"},
                  {Role::kDownBias, "transformer.h.{}.mlp.fc_out.bias"}})};

constexpr TensorLayout kGpt2Hf{
    fused_qkv(
        changed(kHf, {{Role::kEmbedding, "transformer.wte.weight|wte.weight"},
                      {Role::kPositions, "transformer.wpe.weight|wpe.weight"},
                      {Role::kFinalNorm, "transformer.ln_f.weight|ln_f.weight"},
                      {Role::kFinalNormBias, "transformer.ln_f.bias|ln_f.bias"},
                      {Role::kAttentionNorm, "transformer.h.{}.ln_1.weight|h.{}.ln_1.weight"},
                      {Role::kAttentionNormBias, "transformer.h.{}.ln_1.bias|h.{}.ln_1.bias"},
                      {Role::kMlpNorm, "transformer.h.{}.ln_2.weight|h.{}.ln_2.weight"},
                      {Role::kMlpNormBias, "transformer.h.{}.ln_2.bias|h.{}.ln_2.bias"},
                      {Role::kAttentionOutput,
                       "transformer.h.{}.attn.c_proj.weight|h.{}.attn.c_proj.weight"},
                      {Role::kAttentionOutputBias,
                       "transformer.h.{}.attn.c_proj.bias|h.{}.attn.c_proj.bias"},
                      {Role::kUp, "transformer.h.{}.mlp.c_fc.weight|h.{}.mlp.c_fc.weight"},
                      {Role::kUpBias, "transformer.h.{}.mlp.c_fc.bias|h.{}.mlp.c_fc.bias"},
                      {Role::kDown, "transformer.h.{}.mlp.c_proj.weight|h.{}.mlp.c_proj.weight"},
                      {Role::kDownBias, "transformer.h.{}.mlp.c_proj.bias|h.{}.mlp.c_proj.bias"}}),
        "transformer.h.{}.attn.c_attn.weight|h.{}.attn.c_attn.weight",
        "transformer.h.{}.attn.c_attn.bias|h.{}.attn.c_attn.bias"),
    true};

constexpr NormSpec kBeforeAndAfter{.after = true};
constexpr NormSpec kLayerNorm{.layer_norm = true, .bias = true};
constexpr MlpSpec kGeGlu{.activation = Activation::kGeluTanh};

constexpr ArchitectureRow kRows[] = {
    {.name = "llama",
     .hf_class = "LlamaForCausalLM",
     .gguf_name = "llama",
     .bias = BiasRule::kConfigured,
     .gguf_pairing = RopePairing::kAdjacent,
     .writable = true,
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "mistral",
     .hf_class = "MistralForCausalLM",
     .window = WindowRule::kWhenSet,
     .gguf_pairing = RopePairing::kAdjacent,
     .writable = true,
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "qwen2",
     .hf_class = "Qwen2ForCausalLM",
     .gguf_name = "qwen2",
     .bias = BiasRule::kQkv,
     .window = WindowRule::kWhenEnabled,
     .writable = true,
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "qwen3",
     .hf_class = "Qwen3ForCausalLM",
     .gguf_name = "qwen3",
     .bias = BiasRule::kConfigured,
     .qk_norm = QkNorm::kHeads,
     .window = WindowRule::kWhenEnabled,
     .writable = true,
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "gemma2",
     .hf_class = "Gemma2ForCausalLM",
     .gguf_name = "gemma2",
     .bias = BiasRule::kConfigured,
     .window = WindowRule::kWhenSet,
     .windowed = {2},
     .norms = kBeforeAndAfter,
     .mlp = kGeGlu,
     .gguf = {.layers_scaled_by_hidden = 46},
     .embedding_by_root = true,
     .defaults = R"({"tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
                     "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                     "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                     "max_position_embeddings": 8192, "vocab_size": 256000})",
     .hf_tensors = &kGemmaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "gemma3_text",
     .hf_class = "Gemma3ForCausalLM|Gemma3ForConditionalGeneration",
     .gguf_name = "gemma3",
     .bias = BiasRule::kConfigured,
     .qk_norm = QkNorm::kHeads,
     .window = WindowRule::kWhenSet,
     .windowed = {6},
     .norms = kBeforeAndAfter,
     .mlp = kGeGlu,
     .gguf = {.layers_scaled_by_hidden = 62, .window_theta = 10000.0},
     .embedding_by_root = true,
     .defaults = R"({"tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
                     "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                     "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1000000,
                     "rope_local_base_freq": 10000, "max_position_embeddings": 131072,
                     "vocab_size": 262208})",
     .hf_tensors = &kGemmaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "phi3",
     .hf_class = "Phi3ForCausalLM",
     .gguf_name = "phi3",
     .window = WindowRule::kWhenSet,
     .hf_tensors = &kPhi3Hf,
     .gguf_tensors = &kPhi3Gguf},
    {.name = "smollm3",
     .hf_class = "SmolLM3ForCausalLM",
     .gguf_name = "smollm3",
     .bias = BiasRule::kConfigured,
     .window = WindowRule::kWhenEnabled,
     .rotated = {4},
     .gguf_pairing = RopePairing::kAdjacent,
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "granite",
     .hf_class = "GraniteForCausalLM",
     .gguf_name = "granite",
     .bias = BiasRule::kConfigured,
     .gguf_pairing = RopePairing::kAdjacent,
     .gguf = {.divides_logits = true},
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "olmo2",
     .hf_class = "Olmo2ForCausalLM",
     .gguf_name = "olmo2",
     .bias = BiasRule::kConfigured,
     .qk_norm = QkNorm::kOverHeads,
     .norms = {.before = false, .after = true},
     .hf_tensors = &kOlmo2Hf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "glm4",
     .hf_class = "Glm4ForCausalLM",
     .gguf_name = "glm4",
     .bias = BiasRule::kConfiguredQkv,
     .hf_pairing = RopePairing::kAdjacent,
     .gguf_pairing = RopePairing::kAdjacent,
     .norms = kBeforeAndAfter,
     .defaults = R"({"partial_rotary_factor": 0.5, "head_dim": 128})",
     .hf_tensors = &kGlm4Hf,
     .gguf_tensors = &kGlm4Gguf},
    {.name = "glm",
     .hf_class = "GlmForCausalLM",
     .bias = BiasRule::kConfiguredQkv,
     .hf_pairing = RopePairing::kAdjacent,
     .gguf_pairing = RopePairing::kAdjacent,
     .defaults = R"({"partial_rotary_factor": 0.5, "head_dim": 128, "attention_bias": true})",
     .hf_tensors = &kGlm4Hf,
     .gguf_tensors = &kGlm4Gguf},
    {.name = "cohere2",
     .hf_class = "Cohere2ForCausalLM",
     .gguf_name = "cohere2",
     .bias = BiasRule::kConfigured,
     .window = WindowRule::kWhenSet,
     .windowed = {4},
     .rotates_in_windows_only = true,
     .hf_pairing = RopePairing::kAdjacent,
     .gguf_pairing = RopePairing::kAdjacent,
     .norms = {.layer_norm = true},
     .parallel_halves = true,
     .defaults = R"({"tie_word_embeddings": true, "logit_scale": 0.0625, "sliding_window": 4096})",
     .hf_tensors = &kOneNormHf,
     .gguf_tensors = &kOneNormGguf},
    {.name = "cohere",
     .hf_class = "CohereForCausalLM",
     .gguf_name = "command-r",
     .bias = BiasRule::kConfigured,
     .hf_pairing = RopePairing::kAdjacent,
     .gguf_pairing = RopePairing::kAdjacent,
     .norms = {.layer_norm = true},
     .parallel_halves = true,
     .defaults = R"({"tie_word_embeddings": true, "logit_scale": 0.0625})",
     .hf_tensors = &kOneNormHf,
     .gguf_tensors = &kOneNormGguf},
    {.name = "stablelm",
     .hf_class = "StableLmForCausalLM",
     .gguf_name = "stablelm",
     .bias = BiasRule::kConfiguredQkv,
     .norms = kLayerNorm,
     .defaults = R"({"partial_rotary_factor": 0.25})",
     .hf_tensors = &kLlamaHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "falcon",
     .hf_class = "FalconForCausalLM",
     .gguf_name = "falcon",
     .norms = kLayerNorm,
     .mlp = {.activation = Activation::kGelu, .gated = false},
     .parallel_halves = true,
     .defaults = R"({"tie_word_embeddings": true, "max_position_embeddings": 2048,
                     "activation": "gelu"})",
     .hf_tensors = &kFalconHf,
     .gguf_tensors = &kFalconGguf},
    {.name = "gptj",
     .hf_class = "GPTJForCausalLM",
     .hf_pairing = RopePairing::kAdjacent,
     .norms = kLayerNorm,
     .mlp = {.activation = Activation::kGeluTanh, .gated = false, .bias = true},
     .parallel_halves = true,
     .defaults = R"({"activation_function": "gelu_new", "rotary_dim": 64})",
     .hf_tensors = &kGptJHf,
     .gguf_tensors = &kLlamaGguf},
    {.name = "gpt2",
     .hf_class = "GPT2LMHeadModel",
     .gguf_name = "gpt2",
     .bias = BiasRule::kAll,
     .rotated = {1},
     .norms = kLayerNorm,
     .mlp = {.activation = Activation::kGeluTanh, .gated = false, .bias = true},
     .defaults = R"({"tie_word_embeddings": true, "activation_function": "gelu_new"})",
     .hf_tensors = &kGpt2Hf,
     .gguf_tensors = &kFusedGguf},
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

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known) {
  // Levenshtein's distance without regard to case, one row of the table at a time.
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto distance = [&](std::string_view other) {
    std::vector<std::size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (const char letter : name) {
      std::size_t diagonal = row[0]++;
      for (std::size_t i = 0; i < other.size(); ++i) {
        const std::size_t kept = diagonal + (lower(letter) == lower(other[i]) ? 0 : 1);
        diagonal = row[i + 1];
        row[i + 1] = std::min({kept, row[i] + 1, row[i + 1] + 1});
      }
    }
    return row.back();
  };
  check(!known.empty(), "something is known");
  return *std::min_element(known.begin(), known.end(),
                           [&](auto a, auto b) { return distance(a) < distance(b); });
}

std::vector<std::string_view> alternatives(std::string_view names) {
  std::vector<std::string_view> found;
  while (true) {
    const std::size_t end = names.find('|');
    found.push_back(names.substr(0, end));
    if (end == std::string_view::npos) {
      return found;
    }
    names.remove_prefix(end + 1);
  }
}

std::string tensor_name(const TensorNames& names, TensorRole role, int layer) {
  const std::string_view first = alternatives(names[static_cast<std::size_t>(role)]).front();
  return fmt::format(fmt::runtime(first), layer);
}

namespace {

void add_layer(const ModelSpec& spec, int layer, std::vector<NeededTensor>& needed) {
  const AttentionSpec& attention = spec.attention;
  const std::int64_t hidden = spec.hidden;
  const std::int64_t queries = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t keys = std::int64_t{attention.kv_heads} * attention.head_dim;
  const auto add = [&](bool has, TensorRole role, std::int64_t rows, std::int64_t columns = 0) {
    if (has) {
      needed.push_back({role, layer, rows, columns});
    }
  };
  const NormSpec& norms = spec.norms;
  const MlpSpec& mlp = spec.mlp;
  add(norms.before, Role::kAttentionNorm, hidden);
  add(true, Role::kQuery, queries, hidden);
  add(true, Role::kKey, keys, hidden);
  add(true, Role::kValue, keys, hidden);
  add(true, Role::kAttentionOutput, hidden, queries);
  add(norms.before, Role::kMlpNorm, hidden);
  add(mlp.gated, Role::kGate, spec.ffn, hidden);
  add(true, Role::kUp, spec.ffn, hidden);
  add(true, Role::kDown, hidden, spec.ffn);
  add(attention.qkv_bias, Role::kQueryBias, queries);
  add(attention.qkv_bias, Role::kKeyBias, keys);
  add(attention.qkv_bias, Role::kValueBias, keys);
  add(attention.output_bias, Role::kAttentionOutputBias, hidden);
  const bool over_heads = attention.qk_norm_over_heads;
  add(attention.qk_norm, Role::kQueryNorm, over_heads ? queries : attention.head_dim);
  add(attention.qk_norm, Role::kKeyNorm, over_heads ? keys : attention.head_dim);
  add(norms.before && norms.bias, Role::kAttentionNormBias, hidden);
  add(norms.before && norms.bias, Role::kMlpNormBias, hidden);
  add(norms.after, Role::kAttentionPostNorm, hidden);
  add(norms.after, Role::kMlpPostNorm, hidden);
  add(mlp.bias && mlp.gated, Role::kGateBias, spec.ffn);
  add(mlp.bias, Role::kUpBias, spec.ffn);
  add(mlp.bias, Role::kDownBias, hidden);
}

}  // namespace

std::vector<NeededTensor> needed_tensors(const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden;
  std::vector<NeededTensor> needed = {{Role::kEmbedding, 0, spec.vocab, hidden},
                                      {Role::kFinalNorm, 0, hidden}};
  if (!spec.tied_embeddings) {
    needed.push_back({Role::kOutput, 0, spec.vocab, hidden});
  }
  if (spec.norms.bias) {
    needed.push_back({Role::kFinalNormBias, 0, hidden});
  }
  if (spec.output_bias) {
    needed.push_back({Role::kOutputBias, 0, spec.vocab});
  }
  if (spec.learned_positions) {
    needed.push_back({Role::kPositions, 0, spec.max_context, hidden});
  }
  for (int layer = 0; layer < spec.layers; ++layer) {
    add_layer(spec, layer, needed);
  }
  return needed;
}

}  // namespace protean
