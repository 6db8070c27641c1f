#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "model/checkpoint_tensors.h"
#include "model/hf_rope.h"
#include "model/quote.h"

namespace protean {
namespace {

// Reads a GGUF file's metadata below "<architecture>." as fields of a ModelSpec. Keeps the first
// error and continues with defaults.
class Metadata {
 public:
  Metadata(const GgufFile& file, std::string_view prefix) : file_(file), prefix_(prefix) {}

  std::optional<int> find_integer(std::string_view key) {
    const std::optional<std::int64_t> value = keep(file_.find_integer(full(key)));
    if (value && (*value < 0 || *value > std::numeric_limits<int>::max())) {
      fail(ErrorCode::kCorrupt, "metadata {} is {}: convert the model again", full(key), *value);
      return std::nullopt;
    }
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  }
  int integer(std::string_view key, int otherwise) { return find_integer(key).value_or(otherwise); }
  int required_integer(std::string_view key) {
    require(key);
    return integer(key, 0);
  }
  double number(std::string_view key, double otherwise) {
    const double value = keep(file_.find_number(full(key))).value_or(otherwise);
    if (!std::isfinite(value)) {
      fail(ErrorCode::kCorrupt, "metadata {} is not finite: convert the model again", full(key));
    }
    return value;
  }
  double required_number(std::string_view key) {
    require(key);
    return number(key, 0.0);
  }
  std::string text(std::string_view key, std::string_view otherwise) {
    return keep(file_.find_string(full(key))).value_or(std::string(otherwise));
  }
  bool boolean(std::string_view key, bool otherwise) {
    return keep(file_.find_bool(full(key))).value_or(otherwise);
  }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  template <class... Args>
  void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) {
      error_ = make_error(code, "{}: {}", file_.name(),
                          fmt::format(format, std::forward<Args>(args)...));
    }
  }
  Status status() const { return error_ ? Status(*error_) : Status(); }

 private:
  std::string full(std::string_view key) const { return fmt::format("{}{}", prefix_, key); }

  void require(std::string_view key) {
    if (!has(key)) {
      fail(ErrorCode::kCorrupt, "metadata {} is missing: convert the model again", full(key));
    }
  }

  template <class T>
  std::optional<T> keep(const Result<std::optional<T>>& result) {
    if (!result && !error_) {
      error_ = result.error();
    }
    return result ? *result : std::nullopt;
  }

  const GgufFile& file_;
  std::string prefix_;
  std::optional<Error> error_;
};

Result<const ArchitectureRow*> find_row(const GgufFile& file) {
  const auto name = file.find_string("general.architecture");
  if (!name) {
    return name.error();
  }
  std::vector<std::string_view> supported;
  for (const ArchitectureRow& row : architectures()) {
    if (!row.gguf_name.empty()) {
      if (name.value() == row.gguf_name) {
        return &row;
      }
      supported.push_back(row.gguf_name);
    }
  }
  const std::string asked = name.value().value_or("");
  if (asked.empty()) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: metadata general.architecture is missing: convert the model again",
                      file.name());
  }
  return make_error(
      ErrorCode::kUnsupported,
      "{}: architecture {} is not supported: the nearest supported one is {}, and all are {}",
      file.name(), quote(asked), nearest_name(asked, supported), fmt::join(supported, ", "));
}

void refuse_unknown_settings(Metadata& metadata) {
  if (metadata.integer("expert_count", 0) > 0) {
    metadata.fail(ErrorCode::kUnsupported,
                  "a mixture of experts is not supported: use a dense model");
  }
  if (metadata.boolean("use_parallel_residual", false)) {
    metadata.fail(ErrorCode::kUnsupported, "use_parallel_residual is set: this is not supported");
  }
}

// Reads one divisor for each rotated pair, as converters store Llama 3's scaling and longrope.
std::vector<float> read_divisors(Metadata& metadata, const GgufFile& file, std::string_view name,
                                 int rotated) {
  std::vector<float> divisors;
  const GgufTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) {
    return divisors;
  }
  const auto pairs = static_cast<std::size_t>(rotated / 2);
  const GgmlType* type = find_ggml_type(tensor->type);
  if (type == nullptr || type->readable != TensorType::kF32 ||
      tensor->bytes.size() != pairs * sizeof(float)) {
    metadata.fail(ErrorCode::kCorrupt, "tensor {} is not {} F32 numbers: convert the model again",
                  name, pairs);
    return divisors;
  }
  divisors.resize(pairs);
  dequantize(TensorType::kF32, tensor->bytes.data(), rotated / 2, divisors.data());
  for (const float divisor : divisors) {
    if (!std::isfinite(divisor) || divisor <= 0.0F) {
      metadata.fail(ErrorCode::kCorrupt,
                    "tensor {} holds {}: it must be above 0, convert the model again", name,
                    divisor);
    }
  }
  return divisors;
}

void read_yarn(Metadata& metadata, double factor, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = factor;
  rope.original_context =
      metadata.integer("rope.scaling.original_context_length", spec.max_context);
  rope.beta_fast = metadata.number("rope.scaling.yarn_beta_fast", rope.beta_fast);
  rope.beta_slow = metadata.number("rope.scaling.yarn_beta_slow", rope.beta_slow);
  rope.magnitude = metadata.number("rope.scaling.attn_factor", 1.0) * yarn_magnitude(factor);
  const double extended = std::min(std::floor(rope.original_context * factor), 1073741824.0);
  spec.max_context = std::max(spec.max_context, static_cast<int>(extended));
}

void read_scaling(Metadata& metadata, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  // Files older than "rope.scaling.*" have one linear factor.
  const bool old = metadata.has("rope.scale_linear");
  const std::string type = metadata.text("rope.scaling.type", old ? "linear" : "none");
  const double factor =
      metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0));
  if (type == "linear" && factor != 0.0) {  // 0 means no scaling
    rope.scaling = RopeScaling::kLinear;
    rope.factor = factor;
  } else if (type == "yarn" && factor > 0.0) {
    read_yarn(metadata, factor, spec);
  } else if (type != "none" && type != "linear" && type != "longrope" && factor != 1.0) {
    metadata.fail(
        ErrorCode::kUnsupported,
        "rope scaling {} is not supported: use a model with none, linear, yarn or longrope",
        quote(type));
  }
  if (!(rope.factor > 0.0)) {
    metadata.fail(ErrorCode::kCorrupt, "the rope scaling factor {} must be above 0", rope.factor);
  }
}

void read_rope(Metadata& metadata, const GgufFile& file, const ArchitectureRow& row,
               ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  const int head_dim = spec.attention.head_dim;
  rope.theta = metadata.number("rope.freq_base", 10000.0);
  rope.pairing = row.gguf_pairing;
  const int rotated = metadata.integer("rope.dimension_count", head_dim);
  rope.rotated = rotated == head_dim ? 0 : rotated;
  const RopeSpec unscaled = rope;
  read_scaling(metadata, spec);
  rope.divisors = read_divisors(metadata, file, "rope_freqs.weight", rotated);
  if (file.find_tensor("rope_factors_long.weight") != nullptr) {
    rope.scaling = RopeScaling::kLong;
    rope.divisors = read_divisors(metadata, file, "rope_factors_short.weight", rotated);
    rope.long_divisors = read_divisors(metadata, file, "rope_factors_long.weight", rotated);
    rope.original_context =
        metadata.integer("rope.scaling.original_context_length", spec.max_context);
    rope.magnitude = metadata.number("rope.scaling.attn_factor", 1.0);
  }
  const double window_theta = metadata.number("rope.freq_base_swa", row.gguf.window_theta);
  if (window_theta > 0.0 && spec.attention.sliding_window > 0) {
    spec.windowed_rope = unscaled;
    spec.windowed_rope->theta = window_theta;
  }
}

// Returns a flag for each layer of a pattern; nothing if all are true.
std::vector<bool> by_pattern(int layers, const LayerPattern& pattern) {
  constexpr int kMostLayers = 4096;  // validate() refuses more
  std::vector<bool> flags;
  for (int layer = 0; pattern.period > 0 && layer < std::min(layers, kMostLayers); ++layer) {
    flags.push_back((layer + 1) % pattern.period != 0);
  }
  return flags;
}

void read_multipliers(Metadata& metadata, const ArchitectureRow& row, ModelSpec& spec) {
  Multipliers& multipliers = spec.multipliers;
  const double root = row.embedding_by_root ? std::sqrt(static_cast<double>(spec.hidden)) : 1.0;
  multipliers.embedding = static_cast<float>(metadata.number("embedding_scale", root));
  multipliers.residual = static_cast<float>(metadata.number("residual_scale", 1.0));
  const double logits = metadata.number("logit_scale", 1.0);
  if (!(logits > 0.0)) {
    metadata.fail(ErrorCode::kCorrupt, "logit_scale is {}: it must be above 0", logits);
  }
  multipliers.logits = static_cast<float>(row.gguf.divides_logits ? 1.0 / logits : logits);
  multipliers.logit_cap = static_cast<float>(metadata.number("final_logit_softcapping", 0.0));
}

void read_attention(Metadata& metadata, const GgufFile& file, const ArchitectureRow& row,
                    ModelSpec& spec) {
  AttentionSpec& attention = spec.attention;
  attention.heads = metadata.required_integer("attention.head_count");
  attention.kv_heads = metadata.integer("attention.head_count_kv", attention.heads);
  const auto key_length = metadata.find_integer("attention.key_length");
  if (!key_length && (attention.heads == 0 || spec.hidden % attention.heads != 0)) {
    metadata.fail(ErrorCode::kCorrupt,
                  "embedding_length {} is no multiple of head_count {} and key_length is missing",
                  spec.hidden, attention.heads);
    return;
  }
  attention.head_dim = key_length ? *key_length : spec.hidden / attention.heads;
  const int value_length = metadata.integer("attention.value_length", attention.head_dim);
  if (value_length != attention.head_dim) {
    metadata.fail(ErrorCode::kUnsupported,
                  "keys of {} and values of {} elements are not supported: they must be equal",
                  attention.head_dim, value_length);
  }
  attention.sliding_window = metadata.integer("attention.sliding_window", 0);
  if (attention.sliding_window > 0) {
    attention.windowed = by_pattern(spec.layers, row.windowed);
  }
  attention.rotated =
      row.rotates_in_windows_only ? attention.windowed : by_pattern(spec.layers, row.rotated);
  attention.score_cap = static_cast<float>(metadata.number("attn_logit_softcapping", 0.0));
  const bool by_hidden = row.gguf.layers_scaled_by_hidden > 0 &&
                         spec.layers == row.gguf.layers_scaled_by_hidden && attention.heads > 0;
  const double scale =
      by_hidden ? 1.0 / std::sqrt(static_cast<double>(spec.hidden) / attention.heads) : 0.0;
  attention.scale = static_cast<float>(metadata.number("attention.scale", scale));
  const auto has = [&](TensorRole role) {
    return file.find_tensor(tensor_name(row.gguf_tensors->names, role, 0)) != nullptr;
  };
  attention.qkv_bias = row.bias == BiasRule::kQkv || has(TensorRole::kQueryBias);
  attention.output_bias = has(TensorRole::kAttentionOutputBias);
  attention.qk_norm = row.qk_norm != QkNorm::kNone;
  attention.qk_norm_over_heads = row.qk_norm == QkNorm::kOverHeads;
  spec.mlp = row.mlp;
  spec.mlp.bias =
      has(TensorRole::kGateBias) || has(TensorRole::kUpBias) || has(TensorRole::kDownBias);
  spec.output_bias = has(TensorRole::kOutputBias);
  spec.learned_positions = has(TensorRole::kPositions);
}

Result<ModelSpec> read_spec(const GgufFile& file, const ArchitectureRow& row) {
  Metadata metadata(file, fmt::format("{}.", row.gguf_name));
  ModelSpec spec;
  spec.architecture = row.name;
  spec.layers = metadata.required_integer("block_count");
  spec.hidden = metadata.required_integer("embedding_length");
  spec.ffn = metadata.required_integer("feed_forward_length");
  spec.max_context = metadata.required_integer("context_length");
  spec.norm_eps = static_cast<float>(metadata.required_number(
      row.norms.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"));
  spec.norms = row.norms;
  spec.parallel_halves = row.parallel_halves;
  spec.tied_embeddings = file.find_tensor("output.weight") == nullptr;
  refuse_unknown_settings(metadata);
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dimensions.size() != 2 ||
      embedding->dimensions[1] > std::numeric_limits<int>::max()) {
    metadata.fail(
        ErrorCode::kNotFound,
        "tensor token_embd.weight is missing or no table: this file holds no whole model");
    return metadata.status().error();
  }
  spec.vocab = static_cast<int>(embedding->dimensions[1]);
  read_attention(metadata, file, row, spec);
  read_rope(metadata, file, row, spec);
  read_multipliers(metadata, row, spec);
  if (const Status status = metadata.status(); !status) {
    return status.error();
  }
  if (const Status status = validate(spec); !status) {
    return make_error(status.error().code, "{}: {}", file.name(), status.error().message);
  }
  return spec;
}

// Converters write -1 or 2^32 - 1 if there is no such token.
Result<std::vector<TokenId>> read_stop_ids(const GgufFile& file, int vocab) {
  std::vector<TokenId> stop_ids;
  for (const std::string_view which : {"eos", "eot", "eom"}) {
    const auto id = file.find_integer(fmt::format("tokenizer.ggml.{}_token_id", which));
    if (!id) {
      return id.error();
    }
    const std::int64_t token = id.value().value_or(-1);
    const bool known = std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
    if (token >= 0 && token < vocab && !known) {
      stop_ids.push_back(static_cast<TokenId>(token));
    }
  }
  return stop_ids;
}

Result<FoundTensor> find_tensor(const GgufFile& file, const std::string& name) {
  const GgufTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) {
    return make_error(ErrorCode::kNotFound,
                      "{}: tensor {} is missing: the file is incomplete, convert the model again",
                      file.name(), name);
  }
  FoundTensor found{.bytes = tensor->bytes, .file = &file.name()};
  found.shape.assign(tensor->dimensions.rbegin(), tensor->dimensions.rend());
  const GgmlType* type = find_ggml_type(tensor->type);
  found.type_name = type == nullptr ? fmt::format("number {}", tensor->type) : type->format.name;
  found.type = type == nullptr ? std::nullopt : type->readable;
  return found;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(GgufFile file) {
  const Result<const ArchitectureRow*> row = find_row(file);
  if (!row) {
    return row.error();
  }
  Result<ModelSpec> spec = read_spec(file, **row);
  if (!spec) {
    return spec.error();
  }
  Result<std::vector<TokenId>> stop_ids = read_stop_ids(file, spec->vocab);
  if (!stop_ids) {
    return stop_ids.error();
  }
  auto table = collect_tensors(*spec, *(*row)->gguf_tensors,
                               [&](const std::string& name) { return find_tensor(file, name); });
  if (!table) {
    return table.error();
  }
  CheckpointContents contents{.spec = std::move(*spec), .table = std::move(*table)};
  contents.generation.stop_ids = std::move(*stop_ids);
  contents.description = fmt::format("GGUF v{}, {}", file.version(), contents.table.types);
  contents.gguf = std::move(file);
  return make_checkpoint(std::move(contents));
}

}  // namespace protean
