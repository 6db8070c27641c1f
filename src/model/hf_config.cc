#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include "model/config_fields.h"
#include "model/json_file.h"
#include "model/quote.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kDefaultTheta = 10000.0;
constexpr double kDefaultNormEps = 1e-6;
constexpr std::int64_t kMostInputs = 1 << 24;  // that share a scale
constexpr int kDefaultMaxWindowLayers = 28;    // of Qwen2

const ArchitectureRow* find_row(ConfigFields& config) {
  const std::vector<std::string> classes = config.texts("architectures");
  const std::string type = config.text("model_type", "");
  std::string supported;
  for (const ArchitectureRow& row : architectures()) {
    const bool named = std::find(classes.begin(), classes.end(), row.hf_class) != classes.end();
    if (named || (classes.empty() && type == row.name)) {
      return &row;
    }
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", row.hf_class);
  }
  config.fail(ErrorCode::kUnsupported, "architecture {} is not supported: it must be one of {}",
              quote(classes.empty() ? type : classes.front()), supported);
  return nullptr;
}

void read_awq(ConfigFields& fields, WeightQuantization& quantization) {
  quantization.packing = CodePacking::kAwq;
  const std::string version = fields.text("version", "gemm");
  if ((version != "gemm" && version != "GEMM") || !fields.boolean("zero_point", true)) {
    fields.fail(ErrorCode::kUnsupported,
                "AWQ weights of version {} {} zero points are not supported: only \"gemm\" with "
                "zero points is",
                quote(version), fields.boolean("zero_point", true) ? "with" : "without");
  }
}

void read_gptq(ConfigFields& fields, WeightQuantization& quantization) {
  quantization.packing = CodePacking::kGptq;
  const std::string format = fields.text("checkpoint_format", "gptq");
  quantization.zeros_less_one = format != "gptq_v2";
  if (format != "gptq" && format != "gptq_v2") {
    fields.fail(ErrorCode::kUnsupported,
                "GPTQ weights in format {} are not supported: only \"gptq\" and \"gptq_v2\" are",
                quote(format));
  }
}

// Reads how weights are packed as integers.
std::optional<WeightQuantization> read_quantization(ConfigFields& config, const std::string& file) {
  const json::object* object = config.object("quantization_config");
  if (object == nullptr) {
    return std::nullopt;
  }
  ConfigFields fields(*object, file, "quantization_config.");
  WeightQuantization quantization;
  const std::string method = fields.text("quant_method", "unnamed");
  if (method == "awq") {
    read_awq(fields, quantization);
  } else if (method == "gptq") {
    read_gptq(fields, quantization);
  } else {
    fields.fail(ErrorCode::kUnsupported,
                "weights quantised by {} are not supported: use an AWQ or GPTQ checkpoint, the "
                "model's original F32, F16 or BF16 one or a GGUF file",
                fields.has("quant_method") ? quote(method) : method);
  }
  quantization.bits = fields.required_integer("bits");
  const std::vector<std::int64_t> group = fields.integers("group_size");
  quantization.group = group.empty() || group.front() == -1 ? 0 : group.front();
  const bool known = quantization.bits == 2 || quantization.bits == 3 || quantization.bits == 4 ||
                     quantization.bits == 8;
  if (!known || (quantization.packing == CodePacking::kAwq && quantization.bits != 4)) {
    fields.fail(ErrorCode::kUnsupported,
                "{} bits are not supported: AWQ weights have 4, GPTQ weights 2, 3, 4 or 8",
                quantization.bits);
  }
  if (group.size() > 1 || quantization.group < 0 || quantization.group > kMostInputs) {
    fields.fail(ErrorCode::kInvalidArgument,
                "\"group_size\" must be one number above 0, or -1 for whole rows");
  }
  config.require(fields.status());
  return quantization;
}

// Returns the precision of a checkpoint that `protean prune` or others have pruned to 2:4.
Precision read_sparsity(ConfigFields& config, const std::string& file) {
  const json::object* object = config.object("sparsity_config");
  if (object == nullptr) {
    return Precision::kBf16;
  }
  ConfigFields fields(*object, file, "sparsity_config.");
  const bool two_of_four = fields.text("sparsity_structure", "unstructured") == "2:4";
  config.require(fields.status());
  return two_of_four ? Precision::kS24 : Precision::kBf16;
}

// Refuses settings that would change the answers if they were ignored.
void refuse_unknown_settings(ConfigFields& config) {
  if (config.boolean("mlp_bias", false)) {
    config.fail(ErrorCode::kUnsupported,
                "\"mlp_bias\" is true: biases in the MLP are not supported");
  }
  if (const std::string act = config.text("hidden_act", "silu"); act != "silu") {
    config.fail(ErrorCode::kUnsupported, "\"hidden_act\" is {}: only \"silu\" is supported",
                quote(act));
  }
}

void read_llama3_scaling(ConfigFields& scaling, RopeSpec& rope) {
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = scaling.required_number("factor");
  rope.low_freq_factor = scaling.required_number("low_freq_factor");
  rope.high_freq_factor = scaling.required_number("high_freq_factor");
  rope.original_context = scaling.required_integer("original_max_position_embeddings");
  if (!(rope.low_freq_factor > 0.0) || !(rope.high_freq_factor > rope.low_freq_factor) ||
      rope.original_context <= 0) {
    scaling.fail(ErrorCode::kInvalidArgument,
                 "llama3 rope scaling needs 0 < low_freq_factor {} < high_freq_factor {} and "
                 "original_max_position_embeddings {} above 0",
                 rope.low_freq_factor, rope.high_freq_factor, rope.original_context);
  }
}

void read_scaling(ConfigFields& scaling, RopeSpec& rope) {
  const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
  if (type == "llama3") {
    read_llama3_scaling(scaling, rope);
  } else if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = scaling.required_number("factor");
  } else if (type != "default" && type != "none" && scaling.number("factor", 0.0) != 1.0) {
    scaling.fail(ErrorCode::kUnsupported,
                 "rope scaling {} is not supported: use a model with none, linear or llama3, or "
                 "remove it from the config and stay within the original context",
                 quote(type));
  }
  if (!(rope.factor > 0.0)) {
    scaling.fail(ErrorCode::kInvalidArgument, "the rope scaling factor {} must be above 0",
                 rope.factor);
  }
}

void refuse_partial_rotation(ConfigFields& fields) {
  if (const double part = fields.number("partial_rotary_factor", 1.0); part != 1.0) {
    fields.fail(ErrorCode::kUnsupported,
                "\"partial_rotary_factor\" is {}: rotating a part of each head is not supported",
                part);
  }
}

// Old configs have "rope_theta" and "rope_scaling"; new ones have "rope_parameters" with both.
void read_rope(ConfigFields& config, const std::string& file, RopeSpec& rope) {
  rope.theta = config.number("rope_theta", kDefaultTheta);
  refuse_partial_rotation(config);
  const std::string key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json::object* object = config.object(key);
  if (object == nullptr) {
    return;
  }
  const bool nested = std::any_of(object->begin(), object->end(),
                                  [](const auto& member) { return member.value().is_object(); });
  if (nested) {
    config.fail(ErrorCode::kUnsupported,
                "\"{}\" differs between kinds of layers: this is not supported", key);
  }
  ConfigFields fields(*object, file, key + ".");
  rope.theta = fields.number("rope_theta", rope.theta);
  refuse_partial_rotation(fields);
  read_scaling(fields, rope);
  config.require(fields.status());
}

// "layer_types" overrides the window rule of the architecture row. Supported are layers with full
// attention followed by layers with a window.
void read_layer_types(ConfigFields& config, int layers, AttentionSpec& attention) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) {
    return;
  }
  if (types.size() != static_cast<std::size_t>(layers)) {
    config.fail(ErrorCode::kInvalidArgument, "\"layer_types\" has {} entries for {} layers",
                types.size(), layers);
  }
  const auto first = std::find(types.begin(), types.end(), "sliding_attention");
  const auto is_other = [](const std::string& type) { return type != "full_attention"; };
  const bool only_full_before = std::none_of(types.begin(), first, is_other);
  const bool only_windowed_after =
      std::all_of(first, types.end(), [](const auto& type) { return type == "sliding_attention"; });
  if (!only_full_before || !only_windowed_after) {
    config.fail(ErrorCode::kUnsupported,
                "this pattern of \"layer_types\" is not supported: only \"full_attention\" layers "
                "followed by \"sliding_attention\" layers are");
  }
  attention.first_windowed_layer = static_cast<int>(first - types.begin());
}

void read_window(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  AttentionSpec& attention = spec.attention;
  const bool enabled =
      row.window == WindowRule::kWhenSet ||
      (row.window == WindowRule::kWhenEnabled && config.boolean("use_sliding_window", false));
  const int window = config.integer("sliding_window", 0);
  if (!enabled || window == 0) {
    return;
  }
  attention.sliding_window = window;
  if (row.window == WindowRule::kWhenEnabled) {
    attention.first_windowed_layer =
        std::max(config.integer("max_window_layers", kDefaultMaxWindowLayers), 0);
  }
  read_layer_types(config, spec.layers, attention);
  if (attention.first_windowed_layer >= spec.layers) {
    attention.sliding_window = 0;
    attention.first_windowed_layer = 0;
  }
}

void read_attention(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  AttentionSpec& attention = spec.attention;
  attention.heads = config.required_integer("num_attention_heads");
  attention.kv_heads = config.integer("num_key_value_heads", attention.heads);
  if (const auto head_dim = config.find_integer("head_dim")) {
    attention.head_dim = *head_dim;
  } else if (attention.heads > 0 && spec.hidden % attention.heads == 0) {
    attention.head_dim = spec.hidden / attention.heads;
  } else {
    config.fail(ErrorCode::kInvalidArgument,
                "\"hidden_size\" {} is no multiple of \"num_attention_heads\" {} and \"head_dim\" "
                "is missing",
                spec.hidden, attention.heads);
  }
  attention.output_bias = row.bias_in_config && config.boolean("attention_bias", false);
  attention.qkv_bias = row.qkv_bias || attention.output_bias;
  attention.qk_norm = row.qk_norm;
}

void read_sizes(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  spec.architecture = row.name;
  spec.layers = config.required_integer("num_hidden_layers");
  spec.hidden = config.required_integer("hidden_size");
  spec.ffn = config.required_integer("intermediate_size");
  spec.vocab = config.required_integer("vocab_size");
  spec.max_context = config.required_integer("max_position_embeddings");
  spec.norm_eps = static_cast<float>(config.number("rms_norm_eps", kDefaultNormEps));
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
}

// Leaves out ids that no token has, such as -1 for "none".
void add_stop_ids(ConfigFields& config, int vocab, std::vector<TokenId>& stop_ids) {
  for (const std::int64_t id : config.integers("eos_token_id")) {
    const bool known = std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
    if (id >= 0 && id < vocab && !known) {
      stop_ids.push_back(static_cast<TokenId>(id));
    }
  }
}

std::optional<float> read_range(ConfigFields& config, std::string_view key, double low,
                                double high) {
  const std::optional<double> value = config.find_number(key);
  if (!value) {
    return std::nullopt;
  }
  if (*value < low || *value > high) {
    config.fail(ErrorCode::kInvalidArgument,
                "\"{}\" is {}: it must be {} to {}, correct or remove it", key, *value, low, high);
  }
  return static_cast<float>(*value);
}

}  // namespace

Result<HfConfig> parse_hf_config(const json::object& object, const std::string& name) {
  ConfigFields config(object, name);
  HfConfig found;
  found.row = find_row(config);
  if (found.row == nullptr) {
    return config.status().error();
  }
  refuse_unknown_settings(config);
  found.quantization = read_quantization(config, name);
  found.spec.stored.precision = read_sparsity(config, name);
  read_sizes(config, *found.row, found.spec);
  read_attention(config, *found.row, found.spec);
  read_rope(config, name, found.spec.rope);
  read_window(config, *found.row, found.spec);
  add_stop_ids(config, found.spec.vocab, found.generation.stop_ids);
  if (const Status status = config.status(); !status) {
    return status.error();
  }
  if (const Status status = validate(found.spec); !status) {
    return make_error(status.error().code, "{}: {}", name, status.error().message);
  }
  return found;
}

// Takes the values that are given and ignores "do_sample": clients ask for greedy decoding.
Status parse_generation_config(const json::object& object, const std::string& name,
                               const ModelSpec& spec, GenerationDefaults& generation) {
  constexpr double kMostTemperature = 100.0;
  ConfigFields config(object, name);
  add_stop_ids(config, spec.vocab, generation.stop_ids);
  generation.temperature = read_range(config, "temperature", 0.0, kMostTemperature);
  generation.top_p = read_range(config, "top_p", 0.0, 1.0);
  generation.min_p = read_range(config, "min_p", 0.0, 1.0);
  if (const std::optional<int> top_k = config.find_integer("top_k")) {
    generation.top_k = std::max(*top_k, 0);  // -1 means all, as 0 does
  }
  return config.status();
}

Result<HfConfig> read_hf_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const auto object = read_json_file(path);
  if (!object) {
    return object.error();
  }
  Result<HfConfig> config = parse_hf_config(*object, path.string());
  const std::filesystem::path generation = directory / "generation_config.json";
  std::error_code ignored;
  if (!config || !std::filesystem::exists(generation, ignored)) {
    return config;
  }
  const auto defaults = read_json_file(generation);
  if (!defaults) {
    return defaults.error();
  }
  const Status status =
      parse_generation_config(*defaults, generation.string(), config->spec, config->generation);
  return status ? std::move(config) : Result<HfConfig>(status.error());
}

}  // namespace protean
