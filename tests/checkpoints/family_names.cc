#include "tests/checkpoints/family_names.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

using Names = std::map<std::string, std::string, std::less<>>;

const Names kLlamaNames = {{"embedding", "model.embed_tokens"},
                           {"final_norm", "model.norm"},
                           {"output", "lm_head"},
                           {"attention_norm", "model.layers.{}.input_layernorm"},
                           {"q", "model.layers.{}.self_attn.q_proj"},
                           {"k", "model.layers.{}.self_attn.k_proj"},
                           {"v", "model.layers.{}.self_attn.v_proj"},
                           {"o", "model.layers.{}.self_attn.o_proj"},
                           {"q_norm", "model.layers.{}.self_attn.q_norm"},
                           {"k_norm", "model.layers.{}.self_attn.k_norm"},
                           {"mlp_norm", "model.layers.{}.post_attention_layernorm"},
                           {"gate", "model.layers.{}.mlp.gate_proj"},
                           {"up", "model.layers.{}.mlp.up_proj"},
                           {"down", "model.layers.{}.mlp.down_proj"}};

const Names kGgufNames = {{"embedding", "token_embd"},
                          {"positions", "position_embd"},
                          {"final_norm", "output_norm"},
                          {"output", "output"},
                          {"attention_norm", "blk.{}.attn_norm"},
                          {"attention_post_norm", "blk.{}.post_attention_norm"},
                          {"q", "blk.{}.attn_q"},
                          {"k", "blk.{}.attn_k"},
                          {"v", "blk.{}.attn_v"},
                          {"o", "blk.{}.attn_output"},
                          {"q_norm", "blk.{}.attn_q_norm"},
                          {"k_norm", "blk.{}.attn_k_norm"},
                          {"mlp_norm", "blk.{}.ffn_norm"},
                          {"mlp_post_norm", "blk.{}.post_ffw_norm"},
                          {"gate", "blk.{}.ffn_gate"},
                          {"up", "blk.{}.ffn_up"},
                          {"down", "blk.{}.ffn_down"}};

Names fused(const std::string& name) {
  return {{"q", name}, {"k", name}, {"v", name}};
}

Names both(Names some, const Names& more) {
  for (const auto& [what, name] : more) {
    some[what] = name;
  }
  return some;
}

bool two_norms(const ModelSpec& spec) {
  return spec.attention.kv_heads > 1;  // Falcon 40B and later
}

Names falcon_names(const ModelSpec& spec) {
  const std::string layer = "transformer.h.{}.";
  Names names = both(fused(layer + "self_attention.query_key_value"),
                     {{"embedding", "transformer.word_embeddings"},
                      {"final_norm", "transformer.ln_f"},
                      {"attention_norm", layer + "input_layernorm"},
                      {"o", layer + "self_attention.dense"},
                      {"up", layer + "mlp.dense_h_to_4h"},
                      {"down", layer + "mlp.dense_4h_to_h"}});
  return two_norms(spec)
             ? both(names, {{"attention_norm", layer + "ln_attn"}, {"mlp_norm", layer + "ln_mlp"}})
             : names;
}

// Names that differ from Llama's.
Names hf_names(const ModelSpec& spec) {
  const std::string& family = spec.architecture;
  const std::string layer = "model.layers.{}.";
  const std::string h = "transformer.h.{}.";
  if (family == "gemma2" || family == "gemma3_text") {
    return {{"attention_post_norm", layer + "post_attention_layernorm"},
            {"mlp_norm", layer + "pre_feedforward_layernorm"},
            {"mlp_post_norm", layer + "post_feedforward_layernorm"}};
  }
  if (family == "phi3") {
    return both(fused(layer + "self_attn.qkv_proj"),
                {{"gate", layer + "mlp.gate_up_proj"}, {"up", layer + "mlp.gate_up_proj"}});
  }
  if (family == "olmo2") {
    return {{"attention_post_norm", layer + "post_attention_layernorm"},
            {"mlp_post_norm", layer + "post_feedforward_layernorm"}};
  }
  if (family == "glm4" || family == "glm") {
    return {{"attention_post_norm", layer + "post_self_attn_layernorm"},
            {"mlp_post_norm", layer + "post_mlp_layernorm"},
            {"gate", layer + "mlp.gate_up_proj"},
            {"up", layer + "mlp.gate_up_proj"}};
  }
  if (family == "falcon") {
    return falcon_names(spec);
  }
  if (family == "gptj") {
    return {{"embedding", "transformer.wte"}, {"final_norm", "transformer.ln_f"},
            {"attention_norm", h + "ln_1"},   {"q", h + "attn.q_proj"},
            {"k", h + "attn.k_proj"},         {"v", h + "attn.v_proj"},
            {"o", h + "attn.out_proj"},       {"up", h + "mlp.fc_in"},
            {"down", h + "mlp.fc_out"}};
  }
  if (family == "gpt2") {  // without the "transformer." that files of the same class may have
    return both(fused("h.{}.attn.c_attn"), {{"embedding", "wte"},
                                            {"positions", "wpe"},
                                            {"final_norm", "ln_f"},
                                            {"attention_norm", "h.{}.ln_1"},
                                            {"mlp_norm", "h.{}.ln_2"},
                                            {"o", "h.{}.attn.c_proj"},
                                            {"up", "h.{}.mlp.c_fc"},
                                            {"down", "h.{}.mlp.c_proj"}});
  }
  return {};
}

Names gguf_names(const ModelSpec& spec) {
  const std::string& family = spec.architecture;
  const Names qkv = fused("blk.{}.attn_qkv");
  const Names gate = {{"gate", "blk.{}.ffn_up"}};
  if (family == "phi3") {
    return both(qkv, gate);
  }
  if (family == "falcon") {
    return two_norms(spec) ? both(qkv, {{"attention_norm", "blk.{}.attn_norm_2"},
                                        {"mlp_norm", "blk.{}.attn_norm"}})
                           : qkv;
  }
  return family == "gpt2" ? qkv : family == "glm4" ? gate : Names();
}

}  // namespace

Family family_of(const ModelSpec& spec) {
  static const std::map<std::string, Family, std::less<>> kFamilies = {
      {"llama", {"LlamaForCausalLM", "llama", true}},
      {"mistral", {"MistralForCausalLM", "llama", true}},
      {"qwen2", {"Qwen2ForCausalLM", "qwen2"}},
      {"qwen3", {"Qwen3ForCausalLM", "qwen3"}},
      {"gemma2", {.hf_class = "Gemma2ForCausalLM", .gguf = "gemma2", .norms_less_one = true}},
      {"gemma3_text", {.hf_class = "Gemma3ForCausalLM", .gguf = "gemma3", .norms_less_one = true}},
      {"phi3", {"Phi3ForCausalLM", "phi3"}},
      {"smollm3", {"SmolLM3ForCausalLM", "smollm3", true}},
      {"granite", {"GraniteForCausalLM", "granite", true}},
      {"olmo2", {"Olmo2ForCausalLM", "olmo2"}},
      {"glm4", {"Glm4ForCausalLM", "glm4"}},
      {"glm", {"GlmForCausalLM", ""}},
      {"cohere2", {.hf_class = "Cohere2ForCausalLM", .gguf = "cohere2", .one_norm = true}},
      {"cohere", {.hf_class = "CohereForCausalLM", .gguf = "command-r", .one_norm = true}},
      {"stablelm", {"StableLmForCausalLM", "stablelm"}},
      {"falcon", {.hf_class = "FalconForCausalLM", .gguf = "falcon", .grouped_qkv = true}},
      {"gptj", {.hf_class = "GPTJForCausalLM", .one_norm = true}},
      {"gpt2", {.hf_class = "GPT2LMHeadModel", .gguf = "gpt2", .transposed = true}}};
  const auto found = kFamilies.find(spec.architecture);
  check(found != kFamilies.end(), "tests know the family");
  Family family = found->second;
  family.one_norm = family.one_norm || (spec.architecture == "falcon" && !two_norms(spec));
  return family;
}

bool has_gguf(const ModelSpec& spec) {
  return !family_of(spec).gguf.empty();
}

TensorName tensor_name_of(const ModelSpec& spec, std::string_view what, int layer) {
  const auto find = [&](const Names& own, const Names& usual) {
    const auto mine = own.find(what);
    const auto found = mine == own.end() ? usual.find(what) : mine;
    const std::string name = found == usual.end() ? "" : found->second;
    return fmt::format(fmt::runtime(name), layer);
  };
  return {find(hf_names(spec), kLlamaNames), find(gguf_names(spec), kGgufNames)};
}

}  // namespace protean
