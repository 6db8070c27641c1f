#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/checkpoints/family_names.h"
#include "tests/checkpoints/random_weights.h"

namespace protean {
namespace {

namespace json = boost::json;

json::array list_of(const std::vector<float>& values) {
  return json::array(values.begin(), values.end());
}

json::value rope_scaling(const RopeSpec& rope) {
  switch (rope.scaling) {
    case RopeScaling::kLinear:
      return {{"type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_context}};
    case RopeScaling::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", rope.factor},
              {"original_max_position_embeddings", rope.original_context}};
    case RopeScaling::kLong:
      return {{"type", "longrope"},
              {"short_factor", list_of(rope.divisors)},
              {"long_factor", list_of(rope.long_divisors)}};
    case RopeScaling::kNone:
      break;
  }
  return nullptr;
}

std::string activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::kRelu:
      return "relu";
  }
  return "";
}

// Config fields as GPT-2 and GPT-J name them.
json::object gpt_config(const ModelSpec& spec) {
  return {{"n_embd", spec.hidden},
          {"n_head", spec.attention.heads},
          {"n_layer", spec.layers},
          {"n_positions", spec.max_context},
          {"n_inner", spec.ffn == 4 * spec.hidden ? json::value() : json::value(spec.ffn)},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", static_cast<double>(spec.norm_eps)},
          {"rotary_dim", spec.rope.rotated},
          {"vocab_size", spec.vocab}};
}

json::object usual_config(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  json::object config = {{"hidden_act", activation_name(spec.mlp.activation)},
                         {"hidden_size", spec.hidden},
                         {"intermediate_size", spec.ffn},
                         {"max_position_embeddings", spec.max_context},
                         {"num_attention_heads", attention.heads},
                         {"num_hidden_layers", spec.layers},
                         {"num_key_value_heads", attention.kv_heads},
                         {spec.norms.layer_norm ? "layer_norm_eps" : "rms_norm_eps",
                          static_cast<double>(spec.norm_eps)},
                         {"rope_theta", spec.rope.theta},
                         {"rope_scaling", rope_scaling(spec.rope)},
                         {"vocab_size", spec.vocab}};
  if (attention.heads * attention.head_dim != spec.hidden || spec.architecture == "qwen3" ||
      spec.architecture.starts_with("glm")) {
    config["head_dim"] = attention.head_dim;
  }
  if (attention.output_bias || attention.qkv_bias) {
    config[spec.architecture == "stablelm" ? "use_qkv_bias" : "attention_bias"] =
        spec.architecture != "qwen2";
  }
  if (spec.mlp.bias) {
    config["mlp_bias"] = true;
  }
  if (spec.rope.rotated > 0) {
    config["partial_rotary_factor"] = static_cast<double>(spec.rope.rotated) / attention.head_dim;
  }
  if (spec.rope.scaling == RopeScaling::kLong) {
    config["original_max_position_embeddings"] = spec.rope.original_context;
  }
  return config;
}

void add_window(const ModelSpec& spec, json::object& config) {
  const AttentionSpec& attention = spec.attention;
  const std::string& family = spec.architecture;
  const json::value window =
      attention.sliding_window > 0 ? json::value(attention.sliding_window) : json::value();
  if (family == "qwen2" || family == "qwen3") {
    const auto first = std::find(attention.windowed.begin(), attention.windowed.end(), true);
    config["use_sliding_window"] = attention.sliding_window > 0;
    config["sliding_window"] = attention.sliding_window > 0 ? attention.sliding_window : 4096;
    config["max_window_layers"] = first - attention.windowed.begin();
  } else if (family != "llama") {
    config["sliding_window"] = window;
  }
  if (family == "gemma3_text") {
    json::array types;
    for (const bool windowed : attention.windowed) {
      types.emplace_back(windowed ? "sliding_attention" : "full_attention");
    }
    config["layer_types"] = types;
  }
}

void add_family(const ModelSpec& spec, json::object& config) {
  const std::string& family = spec.architecture;
  const Multipliers& multipliers = spec.multipliers;
  if (family == "gemma2" || family == "gemma3_text") {
    config["head_dim"] = spec.attention.head_dim;
    config["query_pre_attn_scalar"] = spec.attention.head_dim;
    config["attn_logit_softcapping"] = json::value();
    config["final_logit_softcapping"] = json::value();
    config["hidden_act"] = "gelu";  // what the files say, and Gemma's code ignores
    config["hidden_activation"] = "gelu_pytorch_tanh";
  }
  if (family == "gemma2") {
    config["attn_logit_softcapping"] = spec.attention.score_cap;
    config["final_logit_softcapping"] = multipliers.logit_cap;
  }
  if (spec.windowed_rope) {
    config["rope_local_base_freq"] = spec.windowed_rope->theta;
  }
  if (family == "smollm3") {
    json::array rotated;
    for (const bool flag : spec.attention.rotated) {
      rotated.emplace_back(flag ? 1 : 0);
    }
    config["no_rope_layers"] = rotated;
  }
  if (family == "granite") {
    config["embedding_multiplier"] = multipliers.embedding;
    config["residual_multiplier"] = multipliers.residual;
    config["logits_scaling"] = 1.0 / multipliers.logits;
    config["attention_multiplier"] = spec.attention.scale;
  }
  if (family == "cohere2" || family == "cohere") {
    config["logit_scale"] = multipliers.logits;
  }
  if (family == "falcon") {
    config.erase("num_key_value_heads");
    config.erase("intermediate_size");
    config.erase("layer_norm_eps");
    config["layer_norm_epsilon"] = spec.norm_eps;
    config["ffn_hidden_size"] = spec.ffn;
    config["num_kv_heads"] = spec.attention.kv_heads;
    config["multi_query"] = spec.attention.kv_heads == 1;
    config["new_decoder_architecture"] = spec.attention.kv_heads > 1;
    config["parallel_attn"] = true;
    config["bias"] = false;
    config["alibi"] = false;
  }
}

json::object config_of(const ModelSpec& spec) {
  const bool gpt = spec.architecture == "gptj" || spec.architecture == "gpt2";
  json::object config = gpt ? gpt_config(spec) : usual_config(spec);
  config["architectures"] = {family_of(spec).hf_class};
  config["model_type"] = spec.architecture;
  config["tie_word_embeddings"] = spec.tied_embeddings;
  config["eos_token_id"] = 2;
  if (!gpt) {
    add_window(spec, config);
    add_family(spec, config);
  }
  return config;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  check(file.good(), "tests can write their checkpoints");
}

void append(const std::vector<float>& weights, SafetensorsType type, std::string& data) {
  for (const float weight : weights) {
    if (type == SafetensorsType::kF32) {
      data.append(reinterpret_cast<const char*>(&weight), sizeof(weight));
      continue;
    }
    const std::uint16_t half = type == SafetensorsType::kF16 ? to_f16(weight) : to_bf16(weight);
    data.append(reinterpret_cast<const char*>(&half), sizeof(half));
  }
}

std::vector<float> transpose(const std::vector<float>& matrix, std::int64_t columns) {
  const std::int64_t rows = std::ssize(matrix) / columns;
  std::vector<float> turned(matrix.size());
  for (std::int64_t i = 0; i < std::ssize(matrix); ++i) {
    turned[static_cast<std::size_t>(i % columns * rows + i / columns)] =
        matrix[static_cast<std::size_t>(i)];
  }
  return turned;
}

// One file with some of the tensors.
struct Shard {
  std::string name;
  json::object header;
  std::string data;

  void add(const std::string& name_of_tensor, json::array shape, const std::vector<float>& weights,
           SafetensorsType type) {
    const std::size_t begin = data.size();
    append(weights, type, data);
    static constexpr std::string_view kTypes[] = {"F32", "F16", "BF16"};
    header[name_of_tensor] = {{"dtype", kTypes[static_cast<int>(type)]},
                              {"shape", std::move(shape)},
                              {"data_offsets", {begin, data.size()}}};
  }

  std::string file() const {
    std::string text = json::serialize(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
    const std::uint64_t length = text.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    return bytes + text + data;
  }
};

}  // namespace

void write_hf_checkpoint(const std::filesystem::path& directory, const ModelSpec& spec,
                         const HfCheckpointOptions& options) {
  write_text(directory / "config.json", json::serialize(config_of(spec)));
  write_text(directory / "generation_config.json", R"({"eos_token_id": 2, "_from_model": true})");
  std::vector<Shard> shards(static_cast<std::size_t>(options.shards));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = options.shards == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, options.shards);
    shards[i].header["__metadata__"] = {{"format", "pt"}};
  }
  json::object weight_map;
  const Family family = family_of(spec);
  const std::vector<WeightTensor> tensors = weight_tensors(spec);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const WeightTensor& tensor = tensors[i];
    if (weight_map.contains(tensor.hf_name)) {
      continue;  // fused with an earlier one
    }
    std::vector<std::vector<float>> parts;
    for (std::size_t part = i; part < tensors.size(); ++part) {
      if (tensors[part].hf_name == tensor.hf_name) {
        parts.push_back(random_weights(tensors[part], options.seed, part));
      }
    }
    const std::int64_t columns = tensor.rows == 0 ? 1 : tensor.columns;
    const bool grouped = family.grouped_qkv && parts.size() == 3;
    std::vector<float> weights = fuse(parts, columns, grouped ? spec.attention.kv_heads : 1);
    const std::int64_t rows = std::ssize(weights) / columns;
    json::array shape = {rows};
    if (tensor.rows != 0) {
      shape.emplace_back(columns);
    }
    if (family.transposed && tensor.layer >= 0 && tensor.rows != 0) {
      weights = transpose(weights, columns);
      shape = {columns, rows};
    }
    for (float& weight : weights) {
      weight -= family.norms_less_one && tensor.is_norm ? 1.0F : 0.0F;
    }
    Shard& shard = shards[i * shards.size() / tensors.size()];
    shard.add(tensor.hf_name, std::move(shape), weights, options.type);
    weight_map[tensor.hf_name] = shard.name;
  }
  for (const Shard& shard : shards) {
    write_text(directory / shard.name, shard.file());
  }
  if (shards.size() > 1) {
    write_text(directory / "model.safetensors.index.json",
               json::serialize(json::object{{"weight_map", std::move(weight_map)}}));
  }
}

}  // namespace protean
