#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/check.h"
#include "tests/checkpoints/checkpoints.h"
#include "tests/checkpoints/random_weights.h"

namespace protean {
namespace {

namespace json = boost::json;

std::string hf_class(const std::string& architecture) {
  if (architecture == "qwen2" || architecture == "qwen3") {
    return "Qwen" + architecture.substr(4) + "ForCausalLM";
  }
  return architecture == "mistral" ? "MistralForCausalLM" : "LlamaForCausalLM";
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
    case RopeScaling::kNone:
      break;
  }
  return nullptr;
}

json::object config_of(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  json::object config = {{"architectures", {hf_class(spec.architecture)}},
                         {"model_type", spec.architecture},
                         {"hidden_act", "silu"},
                         {"hidden_size", spec.hidden},
                         {"intermediate_size", spec.ffn},
                         {"max_position_embeddings", spec.max_context},
                         {"num_attention_heads", attention.heads},
                         {"num_hidden_layers", spec.layers},
                         {"num_key_value_heads", attention.kv_heads},
                         {"rms_norm_eps", static_cast<double>(spec.norm_eps)},
                         {"rope_theta", spec.rope.theta},
                         {"rope_scaling", rope_scaling(spec.rope)},
                         {"tie_word_embeddings", spec.tied_embeddings},
                         {"eos_token_id", 2},
                         {"vocab_size", spec.vocab}};
  if (attention.heads * attention.head_dim != spec.hidden || spec.architecture == "qwen3") {
    config["head_dim"] = attention.head_dim;
  }
  if (attention.output_bias) {
    config["attention_bias"] = true;
  }
  if (spec.architecture == "mistral") {
    config["sliding_window"] =
        attention.sliding_window > 0 ? json::value(attention.sliding_window) : json::value();
  } else if (spec.architecture != "llama") {
    config["use_sliding_window"] = attention.sliding_window > 0;
    config["sliding_window"] = attention.sliding_window > 0 ? attention.sliding_window : 4096;
    config["max_window_layers"] = attention.first_windowed_layer;
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

// One file with some of the tensors.
struct Shard {
  std::string name;
  json::object header;
  std::string data;

  void add(const WeightTensor& tensor, const std::vector<float>& weights, SafetensorsType type) {
    const std::size_t begin = data.size();
    append(weights, type, data);
    json::array shape = {tensor.columns};
    if (tensor.rows != 0) {
      shape.insert(shape.begin(), tensor.rows);
    }
    static constexpr std::string_view kTypes[] = {"F32", "F16", "BF16"};
    header[tensor.hf_name] = {{"dtype", kTypes[static_cast<int>(type)]},
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
  const std::vector<WeightTensor> tensors = weight_tensors(spec);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Shard& shard = shards[i * shards.size() / tensors.size()];
    shard.add(tensors[i], random_weights(tensors[i], options.seed, i), options.type);
    weight_map[tensors[i].hf_name] = shard.name;
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
