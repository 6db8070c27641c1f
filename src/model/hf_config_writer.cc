#include "model/hf_config_writer.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <optional>

#include "model/architecture.h"
#include "model/rope_table.h"

namespace protean {
namespace {

namespace json = boost::json;

// GGUF files hold Llama 3's scaling as one divisor per rotated pair. Returns the scaling if Llama
// 3's formula gives these divisors.
std::optional<RopeSpec> llama3_scaling_of(const RopeSpec& rope, int head_dim) {
  RopeSpec scaling = rope;
  scaling.divisors.clear();
  scaling.scaling = RopeScaling::kLlama3;
  scaling.factor = *std::max_element(rope.divisors.begin(), rope.divisors.end());
  scaling.low_freq_factor = 1;
  scaling.high_freq_factor = 4;
  scaling.original_context = 8192;
  constexpr double kRounding = 1e-4;
  const std::vector<double> wanted = rope_frequencies(rope, head_dim);
  const std::vector<double> found = rope_frequencies(scaling, head_dim);
  const bool same = std::equal(wanted.begin(), wanted.end(), found.begin(), [](double a, double b) {
    return std::abs(a - b) <= kRounding * std::abs(a);
  });
  return same ? std::optional(scaling) : std::nullopt;
}

Status add_rope(const RopeSpec& rope, int head_dim, json::object& config) {
  config["rope_theta"] = rope.theta;
  RopeSpec scaling = rope;
  if (!rope.divisors.empty()) {
    const auto found = llama3_scaling_of(rope, head_dim);
    if (!found) {
      return make_error(ErrorCode::kUnsupported,
                        "the frequency divisors of rope_freqs.weight are not Llama 3's: use the "
                        "model's Hugging Face directory");
    }
    scaling = *found;
  }
  if (scaling.scaling == RopeScaling::kYarn) {
    config["rope_scaling"] = {{"rope_type", "yarn"},
                              {"factor", scaling.factor},
                              {"attention_factor", scaling.magnitude},
                              {"beta_fast", scaling.beta_fast},
                              {"beta_slow", scaling.beta_slow},
                              {"original_max_position_embeddings", scaling.original_context}};
  } else if (scaling.scaling == RopeScaling::kLinear) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  } else if (scaling.scaling == RopeScaling::kLlama3) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.low_freq_factor},
                              {"high_freq_factor", scaling.high_freq_factor},
                              {"original_max_position_embeddings", scaling.original_context}};
  }
  return {};
}

}  // namespace

Result<json::object> hf_config_of(const ModelSpec& spec, const GenerationDefaults& generation) {
  const ArchitectureRow& row = architecture_of(spec);
  if (!row.writable) {
    return make_error(ErrorCode::kUnsupported, "no config can be written for the family {}",
                      row.name);
  }
  json::object config{{"architectures", json::array{row.hf_class}},
                      {"model_type", spec.architecture},
                      {"hidden_act", "silu"},
                      {"vocab_size", spec.vocab},
                      {"hidden_size", spec.hidden},
                      {"intermediate_size", spec.ffn},
                      {"num_hidden_layers", spec.layers},
                      {"num_attention_heads", spec.attention.heads},
                      {"num_key_value_heads", spec.attention.kv_heads},
                      {"head_dim", spec.attention.head_dim},
                      {"max_position_embeddings", spec.max_context},
                      {"rms_norm_eps", static_cast<double>(spec.norm_eps)},
                      {"tie_word_embeddings", spec.tied_embeddings},
                      {"torch_dtype", "bfloat16"}};
  if (!generation.stop_ids.empty()) {
    config["eos_token_id"] = json::array(generation.stop_ids.begin(), generation.stop_ids.end());
  }
  if (row.bias == BiasRule::kConfigured) {
    config["attention_bias"] = spec.attention.output_bias;
  }
  if (spec.attention.sliding_window > 0 && row.window != WindowRule::kNever) {
    config["sliding_window"] = spec.attention.sliding_window;
    if (row.window == WindowRule::kWhenEnabled) {
      config["use_sliding_window"] = true;
      const std::vector<bool>& windowed = spec.attention.windowed;
      config["max_window_layers"] =
          std::find(windowed.begin(), windowed.end(), true) - windowed.begin();
    }
  }
  if (const Status added = add_rope(spec.rope, spec.attention.head_dim, config); !added.ok()) {
    return added.error();
  }
  return config;
}

}  // namespace protean
