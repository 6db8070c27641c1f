#include "model/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <boost/json/parse.hpp>

#include "model/json_file.h"

namespace protean {
namespace {

namespace json = boost::json;

json::object base_config() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
      "num_hidden_layers": 6, "max_position_embeddings": 512, "vocab_size": 100})")
      .as_object();
}

// Returns the base config with changed settings; "-" removes one.
json::object config_with(std::string_view changes) {
  json::object config = base_config();
  const json::value parsed = json::parse(changes);
  for (const auto& change : parsed.as_object()) {
    if (change.value() == "-") {
      config.erase(change.key());
    } else {
      config[change.key()] = change.value();
    }
  }
  return config;
}

Result<HfConfig> parse_config(std::string_view changes) {
  return parse_hf_config(config_with(changes), "config.json");
}

ModelSpec spec_of(std::string_view changes) {
  const Result<HfConfig> config = parse_config(changes);
  EXPECT_TRUE(config.ok()) << changes << ": " << config.error().message;
  return config.ok() ? config->spec : ModelSpec{};
}

TEST(HfConfig, SizesAndDefaults) {
  const ModelSpec spec = spec_of("{}");
  EXPECT_EQ(spec.architecture, "llama");
  EXPECT_EQ(spec.layers, 6);
  EXPECT_EQ(spec.hidden, 64);
  EXPECT_EQ(spec.ffn, 96);
  EXPECT_EQ(spec.vocab, 100);
  EXPECT_EQ(spec.max_context, 512);
  EXPECT_FLOAT_EQ(spec.norm_eps, 1e-6F);
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_EQ(spec.attention.heads, 4);
  EXPECT_EQ(spec.attention.kv_heads, 4);
  EXPECT_EQ(spec.attention.head_dim, 16);
  EXPECT_FALSE(spec.attention.qkv_bias);
  EXPECT_FALSE(spec.attention.qk_norm);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.rope.pairing, RopePairing::kHalfSplit);
  EXPECT_EQ(spec.rope.scaling, RopeScaling::kNone);
}

TEST(HfConfig, PackedWeights) {
  EXPECT_FALSE(parse_config("{}")->quantization.has_value());
  const auto awq = parse_config(R"({"quantization_config": {"quant_method": "awq", "bits": 4,
      "group_size": 64, "zero_point": true, "version": "gemm"}})");
  ASSERT_TRUE(awq.ok()) << awq.error().message;
  EXPECT_EQ(awq->quantization->packing, CodePacking::kAwq);
  EXPECT_EQ(awq->quantization->group, 64);
  EXPECT_FALSE(awq->quantization->zeros_less_one);
  const auto gptq = parse_config(R"({"quantization_config": {"quant_method": "gptq", "bits": 3,
      "group_size": -1, "desc_act": true, "sym": true}})");
  ASSERT_TRUE(gptq.ok()) << gptq.error().message;
  EXPECT_EQ(gptq->quantization->packing, CodePacking::kGptq);
  EXPECT_EQ(gptq->quantization->bits, 3);
  EXPECT_EQ(gptq->quantization->group_of(640), 640);
  EXPECT_TRUE(gptq->quantization->zeros_less_one);
  const auto second = parse_config(R"({"quantization_config": {"quant_method": "gptq", "bits": 8,
      "group_size": 128, "checkpoint_format": "gptq_v2"}})");
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_FALSE(second->quantization->zeros_less_one);
  EXPECT_EQ(second->quantization->groups(300), 3);
}

TEST(HfConfig, HeadsAndBiases) {
  EXPECT_EQ(spec_of(R"({"num_key_value_heads": 2})").attention.kv_heads, 2);
  EXPECT_EQ(spec_of(R"({"num_key_value_heads": null})").attention.kv_heads, 4);
  EXPECT_EQ(spec_of(R"({"head_dim": 24})").attention.head_dim, 24);
  EXPECT_EQ(spec_of(R"({"head_dim": null})").attention.head_dim, 16);
  EXPECT_EQ(spec_of(R"({"head_dim": 32, "hidden_size": 70})").attention.head_dim, 32);
  const AttentionSpec biased = spec_of(R"({"attention_bias": true})").attention;
  EXPECT_TRUE(biased.qkv_bias);
  EXPECT_TRUE(biased.output_bias);
}

TEST(HfConfig, ArchitectureRows) {
  const ModelSpec qwen2 = spec_of(R"({"architectures": ["Qwen2ForCausalLM"]})");
  EXPECT_EQ(qwen2.architecture, "qwen2");
  EXPECT_TRUE(qwen2.attention.qkv_bias);
  EXPECT_FALSE(qwen2.attention.output_bias);
  const ModelSpec qwen3 =
      spec_of(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false})");
  EXPECT_TRUE(qwen3.attention.qk_norm);
  EXPECT_FALSE(qwen3.attention.qkv_bias);
  // Without "architectures", "model_type" decides.
  EXPECT_EQ(spec_of(R"({"architectures": "-", "model_type": "mistral"})").architecture, "mistral");
  EXPECT_EQ(spec_of(R"({"architectures": null, "model_type": "qwen3"})").architecture, "qwen3");
}

TEST(HfConfig, SlidingWindows) {
  const auto attention = [](std::string_view changes) { return spec_of(changes).attention; };
  EXPECT_EQ(attention(R"({"sliding_window": 32})").sliding_window, 0);  // Llama ignores it
  EXPECT_EQ(attention(R"({"architectures": ["MistralForCausalLM"], "sliding_window": 32})")
                .sliding_window,
            32);
  EXPECT_EQ(attention(R"({"architectures": ["MistralForCausalLM"], "sliding_window": null})")
                .sliding_window,
            0);
  EXPECT_EQ(attention(R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32,
                          "max_window_layers": 2})")
                .sliding_window,
            0);
  const AttentionSpec partly =
      attention(R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32,
                    "use_sliding_window": true, "max_window_layers": 2})");
  EXPECT_EQ(partly.sliding_window, 32);
  EXPECT_EQ(partly.windowed, (std::vector<bool>{false, false, true, true, true, true}));
  // By default, 28 layers have no window.
  EXPECT_EQ(attention(R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32,
                          "use_sliding_window": true})")
                .sliding_window,
            0);
}

TEST(HfConfig, LayerTypes) {
  const auto attention = [](std::string_view types) {
    return spec_of(fmt::format(R"({{"architectures": ["Qwen3ForCausalLM"], "sliding_window": 32,
        "use_sliding_window": true, "max_window_layers": 1, "num_hidden_layers": 3,
        "layer_types": {}}})",
                               types))
        .attention;
  };
  using Flags = std::vector<bool>;
  EXPECT_EQ(attention(R"(["full_attention", "full_attention", "sliding_attention"])").windowed,
            (Flags{false, false, true}));
  EXPECT_EQ(attention(R"(["sliding_attention", "full_attention", "sliding_attention"])").windowed,
            (Flags{true, false, true}));
  EXPECT_TRUE(attention(R"(["sliding_attention", "sliding_attention", "sliding_attention"])")
                  .windowed.empty());
  EXPECT_EQ(attention(R"(["full_attention", "full_attention", "full_attention"])").sliding_window,
            0);
  EXPECT_EQ(attention("null").windowed, (Flags{false, true, true}));
}

// Checks the settings of published models.
TEST(HfConfig, YarnAndLongropeExtendTheContext) {
  const ModelSpec qwen = spec_of(R"({"architectures": ["Qwen2ForCausalLM"],
      "max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 32768}})");
  EXPECT_EQ(qwen.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(qwen.max_context, 131072);
  EXPECT_EQ(qwen.rope.original_context, 32768);
  EXPECT_NEAR(qwen.rope.magnitude, 1.13862944, 1e-8);
  const ModelSpec phi = spec_of(R"({"architectures": ["Phi3ForCausalLM"],
      "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
      "rope_scaling": {"type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4]},
      "num_attention_heads": 8})");
  EXPECT_EQ(phi.rope.scaling, RopeScaling::kLong);
  EXPECT_EQ(phi.max_context, 131072);
  EXPECT_NEAR(phi.rope.magnitude, 1.19023807, 1e-8);
  EXPECT_EQ(phi.rope.long_divisors, (std::vector<float>{1, 2, 3, 4}));
  const ModelSpec ntk = spec_of(R"({"max_position_embeddings": 2048, "rope_theta": 10000,
      "rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 64})");
  EXPECT_EQ(ntk.max_context, 4096);
  EXPECT_NEAR(ntk.rope.theta, 10000 * std::pow(3.0, 64.0 / 62.0), 1e-6);
}

TEST(HfConfig, FamiliesLeaveOutWhatTheirCodeKnows) {
  // gemma-3-4b-it: the decoder's own fields, without heads, theta and patterns.
  const ModelSpec gemma = spec_of(R"({"architectures": ["Gemma3ForConditionalGeneration"],
      "model_type": "gemma3", "num_attention_heads": "-", "num_key_value_heads": "-",
      "max_position_embeddings": "-", "vocab_size": "-", "rope_theta": "-", "hidden_act": "-",
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                      "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                      "sliding_window": 1024}})");
  EXPECT_EQ(gemma.attention.heads, 8);
  EXPECT_EQ(gemma.attention.kv_heads, 4);
  EXPECT_EQ(gemma.attention.head_dim, 256);
  EXPECT_EQ(gemma.attention.scale, 0.0F);
  EXPECT_EQ(gemma.attention.window_of(4), 1024);
  EXPECT_EQ(gemma.attention.window_of(5), 0);
  EXPECT_EQ(gemma.rope.theta, 1e6);
  EXPECT_EQ(gemma.rope.factor, 8.0);
  ASSERT_TRUE(gemma.windowed_rope.has_value());
  EXPECT_EQ(gemma.windowed_rope->theta, 1e4);
  EXPECT_EQ(gemma.windowed_rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(gemma.mlp.activation, Activation::kGeluTanh);
  EXPECT_TRUE(gemma.tied_embeddings);
  // The same in the form of newer files.
  const ModelSpec nested = spec_of(R"({"architectures": ["Gemma3ForCausalLM"],
      "hidden_act": "-", "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000}}})");
  EXPECT_EQ(nested.rope.factor, 8.0);
  EXPECT_EQ(nested.windowed_rope->theta, 1e4);
  // gemma-2-27b: scores are scaled by another width than the heads'.
  const ModelSpec wide = spec_of(R"({"architectures": ["Gemma2ForCausalLM"], "head_dim": 128,
      "query_pre_attn_scalar": 144, "hidden_act": "-"})");
  EXPECT_NEAR(wide.attention.scale, 1.0 / 12.0, 1e-7);
  EXPECT_EQ(wide.attention.score_cap, 50.0F);
  EXPECT_EQ(wide.multipliers.logit_cap, 30.0F);
}

TEST(HfConfig, AnUnknownArchitectureHasANearestOne) {
  const auto message = [](std::string_view changes) {
    const Result<HfConfig> config = parse_config(changes);
    EXPECT_FALSE(config.ok());
    return config.ok() ? std::string() : config.error().message;
  };
  EXPECT_NE(message(R"({"architectures": ["Qwen3NextForCausalLM"]})")
                .find("\"Qwen3NextForCausalLM\" is not supported: the nearest supported one is "
                      "Qwen3ForCausalLM, and all are LlamaForCausalLM, "),
            std::string::npos);
  EXPECT_NE(message(R"({"architectures": ["GPT2ForCausalLM"]})").find("nearest supported one is G"),
            std::string::npos);
}

TEST(HfConfig, RopeOfAllSpellings) {
  const auto rope = [](std::string_view changes) { return spec_of(changes).rope; };
  EXPECT_EQ(rope(R"({"rope_theta": 500000})").theta, 500000.0);
  EXPECT_EQ(rope(R"({"rope_theta": 1e6, "rope_scaling": null})").theta, 1e6);
  const RopeSpec linear = rope(R"({"rope_scaling": {"type": "linear", "factor": 2}})");
  EXPECT_EQ(linear.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.factor, 2.0);
  for (const char* changes :
       {R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.5, "high_freq_factor": 4.5,
            "original_max_position_embeddings": 64}})",
        R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
            "low_freq_factor": 1.5, "high_freq_factor": 4.5,
            "original_max_position_embeddings": 64}})"}) {
    const RopeSpec llama3 = rope(changes);
    EXPECT_EQ(llama3.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(llama3.theta, 5e5);
    EXPECT_EQ(llama3.factor, 8.0);
    EXPECT_EQ(llama3.low_freq_factor, 1.5);
    EXPECT_EQ(llama3.high_freq_factor, 4.5);
    EXPECT_EQ(llama3.original_context, 64);
  }
  const RopeSpec plain = rope(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 7}})");
  EXPECT_EQ(plain.scaling, RopeScaling::kNone);
  EXPECT_EQ(plain.theta, 7.0);
  // A factor of 1 changes nothing with any method.
  EXPECT_EQ(rope(R"({"rope_scaling": {"type": "yarn", "factor": 1.0}})").scaling,
            RopeScaling::kNone);
}

struct ConfigRefusal {
  const char* name;
  const char* changes;
  const char* said;
};

class RefusedConfig : public testing::TestWithParam<ConfigRefusal> {};

TEST_P(RefusedConfig, SaysWhy) {
  const Result<HfConfig> config = parse_config(GetParam().changes);
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find(GetParam().said), std::string::npos)
      << config.error().message;
  EXPECT_EQ(config.error().message.rfind("config.json: ", 0), 0U) << config.error().message;
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Table, RefusedConfig,
    testing::Values(
        ConfigRefusal{"architecture", R"({"architectures": ["MambaForCausalLM"]})",
                      "\"MambaForCausalLM\" is not supported: the nearest supported one is "
                      "LlamaForCausalLM"},
        ConfigRefusal{"no_architecture", R"({"architectures": "-", "model_type": "-"})",
                      "\"architectures\" is missing, and there is no \"model_type\" either: add "
                      "what the model is, such as \"architectures\": [\"LlamaForCausalLM\"]"},
        ConfigRefusal{"architectures_text", R"({"architectures": "x"})", "list of strings"},
        ConfigRefusal{"missing_size", R"({"hidden_size": "-"})", "\"hidden_size\" is missing"},
        ConfigRefusal{"text_size", R"({"hidden_size": "64"})", "\"hidden_size\" must be"},
        ConfigRefusal{"fractional_size", R"({"hidden_size": 64.5})", "\"hidden_size\" must be"},
        ConfigRefusal{"huge_size", R"({"hidden_size": 4294967360})", "\"hidden_size\" must be"},
        ConfigRefusal{"negative_layers", R"({"num_hidden_layers": -1})", "number of layers"},
        ConfigRefusal{"zero_heads", R"({"num_attention_heads": 0})", "num_attention_heads"},
        ConfigRefusal{"odd_heads", R"({"num_attention_heads": 3})", "\"head_dim\" is missing"},
        ConfigRefusal{"kv_heads", R"({"num_key_value_heads": 3})", "KV heads"},
        ConfigRefusal{"head_dim", R"({"head_dim": 12})", "head dimension is 12"},
        ConfigRefusal{"negative_window",
                      R"({"architectures": ["MistralForCausalLM"], "sliding_window": -4})",
                      "sliding window"},
        ConfigRefusal{"activation", R"({"hidden_act": "mish"})", "\"hidden_act\" is \"mish\""},
        ConfigRefusal{"alibi", R"({"architectures": ["FalconForCausalLM"], "alibi": true})",
                      "\"alibi\" is true"},
        ConfigRefusal{"bitsandbytes",
                      R"({"quantization_config": {"quant_method": "bitsandbytes"}})",
                      "quantised by \"bitsandbytes\""},
        ConfigRefusal{"awq_without_bits", R"({"quantization_config": {"quant_method": "awq"}})",
                      "bits"},
        ConfigRefusal{
            "awq_gemv",
            R"({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}})",
            "version \"gemv\""},
        ConfigRefusal{
            "awq_8",
            R"({"quantization_config": {"quant_method": "awq", "bits": 8, "group_size": 128}})",
            "8 bits are not supported"},
        ConfigRefusal{"gptq_5", R"({"quantization_config": {"quant_method": "gptq", "bits": 5}})",
                      "5 bits are not supported"},
        ConfigRefusal{
            "gptq_group",
            R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0.5}})",
            "group_size"},
        ConfigRefusal{
            "gptq_negative_group",
            R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -7}})",
            "group_size"},
        ConfigRefusal{"gptq_marlin",
                      R"({"quantization_config": {"quant_method": "gptq", "bits": 4,
                                            "checkpoint_format": "marlin"}})",
                      "format \"marlin\""},
        ConfigRefusal{"unnamed_quantization", R"({"quantization_config": {}})",
                      "quantised by unnamed"},
        ConfigRefusal{"unknown_scaling", R"({"rope_scaling": {"rope_type": "3d", "factor": 4.0}})",
                      "rope scaling \"3d\" is not supported"},
        ConfigRefusal{"yarn", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                   "original_max_position_embeddings": 0}})",
                      "original_max_position_embeddings 0 above 0"},
        ConfigRefusal{"dynamic", R"({"rope_scaling": {"type": "dynamic", "factor": 0.5}})",
                      "at least 1, not 0.5"},
        ConfigRefusal{"longrope", R"({"rope_scaling": {"type": "longrope", "short_factor": [1]}})",
                      "\"long_factor\""},
        ConfigRefusal{"longrope_count", R"({"rope_scaling": {"type": "longrope",
                                            "short_factor": [1], "long_factor": [1]}})",
                      "one for each rotated pair"},
        ConfigRefusal{"linear_without_factor", R"({"rope_scaling": {"type": "linear"}})",
                      "\"rope_scaling.factor\" is missing"},
        ConfigRefusal{"linear_by_0", R"({"rope_scaling": {"type": "linear", "factor": 0}})",
                      "must be above 0"},
        ConfigRefusal{"llama3_incomplete",
                      R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
                      "\"rope_scaling.low_freq_factor\" is missing"},
        ConfigRefusal{"llama3_upside_down",
                      R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                    "high_freq_factor": 1, "original_max_position_embeddings": 64}})",
                      "low_freq_factor 4 < high_freq_factor 1"},
        ConfigRefusal{"scaling_text", R"({"rope_scaling": "linear"})", "\"rope_scaling\" must be"},
        ConfigRefusal{"rope_per_layer_type",
                      R"({"rope_parameters": {"full_attention": {"rope_theta": 1}}})",
                      "differs between kinds of layers"},
        ConfigRefusal{"partial_rotation", R"({"partial_rotary_factor": -0.5})",
                      "partial_rotary_factor"},
        ConfigRefusal{"theta", R"({"rope_theta": 0})", "rope theta 0"},
        ConfigRefusal{"infinite_theta", R"({"rope_theta": 1e999})", "\"rope_theta\" must be"},
        ConfigRefusal{"unknown_layer_type",
                      R"({"architectures": ["MistralForCausalLM"], "sliding_window": 32,
                    "num_hidden_layers": 1, "layer_types": ["linear_attention"]})",
                      "layer_types"},
        ConfigRefusal{"layer_types_count",
                      R"({"architectures": ["MistralForCausalLM"], "sliding_window": 32,
                    "layer_types": ["full_attention"]})",
                      "1 entries for 6 layers"}),
    [](const auto& refusal) { return refusal.param.name; });

TEST(HfConfig, StopIdsOfBothFilesAndGivenSamplingOnly) {
  Result<HfConfig> config = parse_config(R"({"eos_token_id": 2})");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->generation.stop_ids, std::vector<TokenId>{2});
  const json::object generation =
      json::parse(R"({"do_sample": false, "eos_token_id": [7, 2, 9, -1, 100],
                      "temperature": 0.6, "top_p": null, "top_k": -1, "min_p": 0.05})")
          .as_object();
  GenerationDefaults& defaults = config->generation;
  const Status status =
      parse_generation_config(generation, "generation_config.json", config->spec, defaults);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(defaults.stop_ids, (std::vector<TokenId>{2, 7, 9}));
  EXPECT_EQ(defaults.temperature, 0.6F);
  EXPECT_EQ(defaults.top_k, 0);
  EXPECT_EQ(defaults.top_p, std::nullopt);
  EXPECT_EQ(defaults.min_p, 0.05F);
}

TEST(HfConfig, ImpossibleSamplingIsRefused) {
  const Result<HfConfig> config = parse_config("{}");
  ASSERT_TRUE(config.ok());
  for (const char* text : {R"({"temperature": -1})", R"({"top_p": 1.5})", R"({"min_p": "x"})",
                           R"({"top_k": 0.5})", R"({"eos_token_id": "</s>"})"}) {
    GenerationDefaults defaults;
    const Status status =
        parse_generation_config(json::parse(text).as_object(), "g.json", config->spec, defaults);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().message.rfind("g.json: \"", 0), 0U) << status.error().message;
  }
}

}  // namespace
}  // namespace protean
