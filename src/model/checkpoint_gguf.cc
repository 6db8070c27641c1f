#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "model/checkpoint_tensors.h"
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
  std::string supported;
  for (const ArchitectureRow& row : architectures()) {
    if (!row.gguf_name.empty()) {
      if (name.value() == row.gguf_name) {
        return &row;
      }
      supported += fmt::format("{}{}", supported.empty() ? "" : ", ", row.gguf_name);
    }
  }
  return make_error(ErrorCode::kUnsupported,
                    "{}: architecture {} is not supported: it must be one of {}", file.name(),
                    quote(name.value().value_or("")), supported);
}

void refuse_unknown_settings(Metadata& metadata, const GgufFile& file) {
  if (metadata.integer("expert_count", 0) > 0) {
    metadata.fail(ErrorCode::kUnsupported,
                  "a mixture of experts is not supported: use a dense model");
  }
  for (const std::string_view part : {"gate", "up", "down"}) {
    if (const std::string bias = fmt::format("blk.0.ffn_{}.bias", part); file.find_tensor(bias)) {
      metadata.fail(ErrorCode::kUnsupported, "tensor {}: biases in the MLP are not supported",
                    bias);
    }
  }
}

// Converters store Llama 3's scaling as one divisor for each rotated pair.
void read_divisors(Metadata& metadata, const GgufFile& file, int head_dim, RopeSpec& rope) {
  const GgufTensor* tensor = file.find_tensor("rope_freqs.weight");
  if (tensor == nullptr) {
    return;
  }
  const auto pairs = static_cast<std::size_t>(head_dim / 2);
  const GgmlType* type = find_ggml_type(tensor->type);
  if (type == nullptr || type->readable != TensorType::kF32 ||
      tensor->bytes.size() != pairs * sizeof(float)) {
    metadata.fail(ErrorCode::kCorrupt,
                  "tensor rope_freqs.weight is not {} F32 numbers: convert the model again", pairs);
    return;
  }
  rope.divisors.resize(pairs);
  dequantize(TensorType::kF32, tensor->bytes.data(), head_dim / 2, rope.divisors.data());
  for (const float divisor : rope.divisors) {
    if (!std::isfinite(divisor) || divisor <= 0.0F) {
      metadata.fail(
          ErrorCode::kCorrupt,
          "tensor rope_freqs.weight holds {}: it must be above 0, convert the model again",
          divisor);
    }
  }
}

void read_rope(Metadata& metadata, int head_dim, RopeSpec& rope) {
  rope.theta = metadata.number("rope.freq_base", 10000.0);
  if (const int rotated = metadata.integer("rope.dimension_count", head_dim); rotated != head_dim) {
    metadata.fail(ErrorCode::kUnsupported, "rotating {} of {} elements of a head is not supported",
                  rotated, head_dim);
  }
  // Files older than "rope.scaling.*" have one linear factor.
  const bool old = metadata.has("rope.scale_linear");
  const std::string type = metadata.text("rope.scaling.type", old ? "linear" : "none");
  const double factor =
      metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0));
  if (type == "linear" && factor != 0.0) {  // 0 means no scaling
    rope.scaling = RopeScaling::kLinear;
    rope.factor = factor;
  } else if (type != "none" && type != "linear" && factor != 1.0) {
    metadata.fail(ErrorCode::kUnsupported,
                  "rope scaling {} is not supported: use a model with none or linear", quote(type));
  }
  if (!(rope.factor > 0.0)) {
    metadata.fail(ErrorCode::kCorrupt, "the rope scaling factor {} must be above 0", rope.factor);
  }
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
  const auto has = [&](TensorRole role) {
    return file.find_tensor(tensor_name(*row.gguf_tensors, role, 0)) != nullptr;
  };
  attention.qkv_bias = row.qkv_bias || has(TensorRole::kQueryBias);
  attention.output_bias = has(TensorRole::kAttentionOutputBias);
  attention.qk_norm = row.qk_norm;
}

Result<ModelSpec> read_spec(const GgufFile& file, const ArchitectureRow& row) {
  Metadata metadata(file, fmt::format("{}.", row.gguf_name));
  ModelSpec spec;
  spec.architecture = row.name;
  spec.layers = metadata.required_integer("block_count");
  spec.hidden = metadata.required_integer("embedding_length");
  spec.ffn = metadata.required_integer("feed_forward_length");
  spec.max_context = metadata.required_integer("context_length");
  spec.norm_eps = static_cast<float>(metadata.required_number("attention.layer_norm_rms_epsilon"));
  spec.tied_embeddings = file.find_tensor("output.weight") == nullptr;
  refuse_unknown_settings(metadata, file);
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
  read_rope(metadata, spec.attention.head_dim, spec.rope);
  spec.rope.pairing = row.gguf_pairing;
  read_divisors(metadata, file, spec.attention.head_dim, spec.rope);
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
  if (const auto parts = file.find_integer("split.count"); parts.ok() && parts->value_or(0) > 1) {
    return make_error(
        ErrorCode::kUnsupported,
        "{} is one of {} parts: merge them into one file with llama-gguf-split --merge",
        file.name(), **parts);
  }
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
