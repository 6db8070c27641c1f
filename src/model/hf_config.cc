#include "model/hf_config.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>
#include <functional>
#include <system_error>
#include <utility>

#include "model/config_fields.h"
#include "model/hf_quantization.h"
#include "model/hf_rope.h"
#include "model/json_file.h"
#include "model/quote.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kDefaultNormEps = 1e-6;
constexpr int kDefaultMaxWindowLayers = 28;  // of Qwen2

const ArchitectureRow* find_row(ConfigFields& config) {
  const std::vector<std::string> classes = config.texts("architectures");
  const std::string type = config.text("model_type", "");
  std::vector<std::string_view> supported;
  for (const ArchitectureRow& row : architectures()) {
    const auto names = alternatives(row.hf_class);
    const bool named = std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return std::find(classes.begin(), classes.end(), name) != classes.end();
    });
    if (named || (classes.empty() && type == row.name)) {
      return &row;
    }
    supported.insert(supported.end(), names.begin(), names.end());
  }
  const std::string asked = classes.empty() ? type : classes.front();
  if (asked.empty()) {
    config.fail(ErrorCode::kInvalidArgument,
                "\"architectures\" is missing, and there is no \"model_type\" either: add what the "
                "model is, such as \"architectures\": [\"{}\"]; supported are {}",
                supported.front(), fmt::join(supported, ", "));
    return nullptr;
  }
  config.fail(ErrorCode::kUnsupported,
              "architecture {} is not supported: the nearest supported one is {}, and all are {}",
              quote(asked), nearest_name(asked, supported), fmt::join(supported, ", "));
  return nullptr;
}

// Returns the config with what the family leaves out, and with the decoder's own fields if it is a
// part of a model that also reads pictures.
json::object whole_config(const json::object& object, const ArchitectureRow& row) {
  json::object whole = json::parse(row.defaults).as_object();
  const json::value* inner = object.if_contains("text_config");
  for (const json::object* fields : {&object, inner == nullptr ? nullptr : inner->if_object()}) {
    for (std::size_t i = 0; fields != nullptr && i < fields->size(); ++i) {
      const auto& member = *(fields->begin() + static_cast<std::ptrdiff_t>(i));
      whole[member.key()] = member.value();
    }
  }
  return whole;
}

std::optional<Activation> find_activation(std::string_view name) {
  constexpr std::pair<std::string_view, Activation> kNames[] = {
      {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},         {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_new", Activation::kGeluTanh}, {"relu", Activation::kRelu}};
  for (const auto& [known, activation] : kNames) {
    if (known == name) {
      return activation;
    }
  }
  return std::nullopt;
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
  for (const std::string_view key :
       {"use_parallel_residual", "qk_layernorm", "use_qk_norm", "alibi", "bias",
        "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    if (config.boolean(key, false)) {
      config.fail(ErrorCode::kUnsupported, "\"{}\" is true: this is not supported", key);
    }
  }
  if (!config.boolean("parallel_attn", true) &&
      !config.boolean("new_decoder_architecture", false)) {
    config.fail(ErrorCode::kUnsupported, "\"parallel_attn\" is false: this is not supported");
  }
}

// Returns a flag for each layer; nothing if all are true.
std::vector<bool> by_layer(int layers, const std::function<bool(int)>& is) {
  constexpr int kMostLayers = 4096;  // validate() refuses more
  std::vector<bool> flags;
  for (int layer = 0; layer < std::min(layers, kMostLayers); ++layer) {
    flags.push_back(is(layer));
  }
  return std::find(flags.begin(), flags.end(), false) == flags.end() ? std::vector<bool>() : flags;
}

std::vector<bool> by_pattern(int layers, int period) {
  return by_layer(layers, [&](int layer) { return period <= 0 || (layer + 1) % period != 0; });
}

// Reads which layers have the window. "layer_types" overrides the family's pattern.
std::vector<bool> read_windowed(ConfigFields& config, const ArchitectureRow& row, int layers) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty() && row.window == WindowRule::kWhenEnabled) {
    const int first = config.integer("max_window_layers", kDefaultMaxWindowLayers);
    return by_layer(layers, [&](int layer) { return layer >= first; });
  }
  if (types.empty()) {
    return by_pattern(layers, config.integer("sliding_window_pattern", row.windowed.period));
  }
  const auto other = std::find_if(types.begin(), types.end(), [](const std::string& type) {
    return type != "full_attention" && type != "sliding_attention";
  });
  if (other != types.end()) {
    config.fail(ErrorCode::kUnsupported, "\"layer_types\" has {}, which is not supported",
                quote(*other));
    return {};
  }
  if (types.size() != static_cast<std::size_t>(std::max(layers, 0))) {
    config.fail(ErrorCode::kInvalidArgument, "\"layer_types\" has {} entries for {} layers",
                types.size(), layers);
    return {};
  }
  return by_layer(layers, [&](int layer) {
    return types[static_cast<std::size_t>(layer)] == "sliding_attention";
  });
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
  attention.windowed = read_windowed(config, row, spec.layers);
  const auto& windowed = attention.windowed;
  if (windowed.empty() || std::find(windowed.begin(), windowed.end(), true) != windowed.end()) {
    attention.sliding_window = window;
  } else {
    attention.windowed.clear();
  }
}

// Reads which layers rotate.
void read_rotated(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  AttentionSpec& attention = spec.attention;
  if (row.rotates_in_windows_only) {
    attention.rotated = attention.windowed;
    return;
  }
  const std::vector<std::int64_t> flags = config.integers("no_rope_layers");  // 1 means rotated
  if (flags.empty()) {
    attention.rotated =
        by_pattern(spec.layers, config.integer("no_rope_layer_interval", row.rotated.period));
  } else if (flags.size() != static_cast<std::size_t>(std::max(spec.layers, 0))) {
    config.fail(ErrorCode::kInvalidArgument, "\"no_rope_layers\" has {} entries for {} layers",
                flags.size(), spec.layers);
  } else {
    attention.rotated = by_layer(
        spec.layers, [&](int layer) { return flags[static_cast<std::size_t>(layer)] != 0; });
  }
}

void read_biases(ConfigFields& config, const ArchitectureRow& row, AttentionSpec& attention) {
  const bool configured = config.boolean(config.one_of({"attention_bias", "use_qkv_bias"}), false);
  attention.output_bias =
      row.bias == BiasRule::kAll || (row.bias == BiasRule::kConfigured && configured);
  attention.qkv_bias = attention.output_bias || row.bias == BiasRule::kQkv ||
                       (row.bias == BiasRule::kConfiguredQkv && configured);
}

void read_attention(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  AttentionSpec& attention = spec.attention;
  attention.heads = config.required_integer(config.one_of({"num_attention_heads", "n_head"}));
  const bool one_kv_head =
      config.boolean("multi_query", false) && !config.boolean("new_decoder_architecture", false);
  attention.kv_heads =
      one_kv_head
          ? 1
          : config.integer(config.one_of({"num_key_value_heads", "num_kv_heads"}), attention.heads);
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
  read_biases(config, row, attention);
  attention.qk_norm = row.qk_norm != QkNorm::kNone;
  attention.qk_norm_over_heads = row.qk_norm == QkNorm::kOverHeads;
  attention.score_cap = static_cast<float>(config.number("attn_logit_softcapping", 0.0));
  const double usual = 1.0 / std::sqrt(static_cast<double>(std::max(attention.head_dim, 1)));
  const double scaled_as = config.number("query_pre_attn_scalar", 0.0);
  const double scale =
      scaled_as > 0.0 ? 1.0 / std::sqrt(scaled_as) : config.number("attention_multiplier", usual);
  attention.scale = scale == usual ? 0.0F : static_cast<float>(scale);
}

void read_mlp(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  spec.mlp = row.mlp;
  spec.mlp.bias = row.mlp.bias || config.boolean("mlp_bias", false);
  const std::string_view chosen =  // Gemma's "hidden_act" is ignored if the other is set
      config.one_of({"hidden_activation", "hidden_act", "activation_function", "activation"});
  if (!config.has(chosen)) {
    return;
  }
  const std::string name = config.text(chosen, "");
  const auto activation = find_activation(name);
  spec.mlp.activation = activation.value_or(Activation::kSilu);
  if (!activation) {
    config.fail(ErrorCode::kUnsupported,
                "\"{}\" is {}: only \"silu\", \"gelu\", \"gelu_pytorch_tanh\", \"gelu_new\" and "
                "\"relu\" are supported",
                chosen, quote(name));
  }
}

void read_multipliers(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  Multipliers& multipliers = spec.multipliers;
  const double root = row.embedding_by_root ? std::sqrt(static_cast<double>(spec.hidden)) : 1.0;
  multipliers.embedding = static_cast<float>(config.number("embedding_multiplier", root));
  multipliers.residual = static_cast<float>(config.number("residual_multiplier", 1.0));
  const double divided = config.number("logits_scaling", 1.0);
  multipliers.logits = static_cast<float>(config.number("logit_scale", 1.0 / divided));
  multipliers.logit_cap = static_cast<float>(config.number("final_logit_softcapping", 0.0));
  if (divided == 0.0) {
    config.fail(ErrorCode::kInvalidArgument, "\"logits_scaling\" is 0: correct it");
  }
}

void read_sizes(ConfigFields& config, const ArchitectureRow& row, ModelSpec& spec) {
  spec.architecture = row.name;
  spec.layers = config.required_integer(config.one_of({"num_hidden_layers", "n_layer"}));
  spec.hidden = config.required_integer(config.one_of({"hidden_size", "n_embd"}));
  const std::string_view ffn = config.one_of({"intermediate_size", "ffn_hidden_size", "n_inner"});
  const bool has_usual = !row.mlp.gated && !config.has(ffn) && spec.hidden < (1 << 20);
  spec.ffn = has_usual ? 4 * spec.hidden : config.required_integer(ffn);
  spec.vocab = config.required_integer("vocab_size");
  spec.max_context =
      config.required_integer(config.one_of({"max_position_embeddings", "n_positions"}));
  const std::string_view eps =
      config.one_of({"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"});
  spec.norm_eps =
      static_cast<float>(config.number(eps, row.norms.layer_norm ? 1e-5 : kDefaultNormEps));
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  spec.norms = row.norms;
  spec.parallel_halves = row.parallel_halves;
  spec.learned_positions =
      !row.hf_tensors->names[static_cast<std::size_t>(TensorRole::kPositions)].empty();
  spec.rope.pairing = row.hf_pairing;
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
  ConfigFields given(object, name);
  HfConfig found;
  found.row = find_row(given);
  if (!given.status()) {
    return given.status().error();
  }
  const json::object whole = whole_config(object, *found.row);
  ConfigFields config(whole, name);
  refuse_unknown_settings(config);
  found.quantization = read_quantization(config, name);
  found.spec.stored.precision = read_sparsity(config, name);
  read_sizes(config, *found.row, found.spec);
  read_attention(config, *found.row, found.spec);
  read_mlp(config, *found.row, found.spec);
  read_multipliers(config, *found.row, found.spec);
  read_rope(config, name, found.spec);
  read_window(config, *found.row, found.spec);
  read_rotated(config, *found.row, found.spec);
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
