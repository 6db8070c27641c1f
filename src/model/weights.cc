#include "model/weights.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kReleaseEveryBytes = 32 * kMiB;  // of rows read as f32

// Hands out aligned pieces of a region. Without a base it only adds up what will be needed, so one
// layout function serves for both.
class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}

  cpu::PackedMatrix matrix(cpu::WeightFormat format, std::int64_t outputs, std::int64_t inputs) {
    cpu::PackedMatrix matrix{.format = format, .outputs = outputs, .inputs = inputs};
    matrix.data = take(matrix.bytes());
    return matrix;
  }

  std::span<float> vector(std::int64_t size) {
    auto* data = reinterpret_cast<float*>(take(size * std::int64_t{sizeof(float)}));
    return base_ == nullptr ? std::span<float>() : std::span(data, static_cast<std::size_t>(size));
  }

  std::int64_t bytes() const { return used_; }

 private:
  std::byte* take(std::int64_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(bytes, kAlignment);
    return piece;
  }

  std::byte* base_;
  std::int64_t used_ = 0;
};

void lay_out(LayerVariant& layer, const ModelSpec& spec, cpu::WeightFormat format, Carver& carver) {
  const AttentionSpec& attention = spec.attention;
  const std::int64_t q = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t kv = std::int64_t{attention.kv_heads} * attention.head_dim;
  layer.attention_norm = carver.vector(spec.hidden);
  layer.query = carver.matrix(format, q, spec.hidden);
  layer.key = carver.matrix(format, kv, spec.hidden);
  layer.value = carver.matrix(format, kv, spec.hidden);
  if (attention.qkv_bias) {
    layer.query_bias = carver.vector(q);
    layer.key_bias = carver.vector(kv);
    layer.value_bias = carver.vector(kv);
  }
  if (attention.qk_norm) {
    layer.query_norm = carver.vector(attention.head_dim);
    layer.key_norm = carver.vector(attention.head_dim);
  }
  layer.attention_output = carver.matrix(format, spec.hidden, q);
  if (attention.output_bias) {
    layer.attention_output_bias = carver.vector(spec.hidden);
  }
  layer.mlp_norm = carver.vector(spec.hidden);
  layer.gate = carver.matrix(format, spec.ffn, spec.hidden);
  layer.up = carver.matrix(format, spec.ffn, spec.hidden);
  layer.down = carver.matrix(format, spec.hidden, spec.ffn);
}

void lay_out(ModelWeights& weights, const ModelSpec& spec, cpu::WeightFormat format,
             Carver& carver) {
  weights.embedding = carver.matrix(format, spec.vocab, spec.hidden);
  weights.output =
      spec.tied_embeddings ? weights.embedding : carver.matrix(format, spec.vocab, spec.hidden);
  weights.final_norm = carver.vector(spec.hidden);
}

template <class Weights>
std::int64_t needed_bytes(const ModelSpec& spec, cpu::WeightFormat format) {
  Weights weights;
  Carver carver;
  lay_out(weights, spec, format, carver);
  return carver.bytes();
}

template <class Weights>
Status allocate(Weights& weights, const ModelSpec& spec, cpu::WeightFormat format) {
  Result<cpu::Region> region = cpu::Region::map(needed_bytes<Weights>(spec, format));
  if (!region) {
    return region.error();
  }
  weights.memory = std::move(*region);
  Carver carver(weights.memory.data());
  lay_out(weights, spec, format, carver);
  return {};
}

std::string_view name_of(TensorRole role) {
  switch (role) {
    case TensorRole::kQuery:
      return "query";
    case TensorRole::kKey:
      return "key";
    case TensorRole::kValue:
      return "value";
    case TensorRole::kAttentionOutput:
      return "attention output";
    case TensorRole::kGate:
      return "gate";
    case TensorRole::kUp:
      return "up";
    case TensorRole::kDown:
      return "down";
    default:
      return "outer";
  }
}

void read_vector(const Checkpoint& checkpoint, TensorRole role, int layer, std::span<float> out) {
  if (!out.empty()) {
    checkpoint.read_rows(role, layer, 0, 1, out.data());
    checkpoint.release(role, layer);
  }
}

// Integers on file that the packed format can hold as they are: rounding them again would lose.
bool holds(const cpu::WeightFormat& format, const std::optional<QuantFormat>& stored) {
  return stored && format.quantized() && stored->bits == format.bits() &&
         stored->group == format.group && (stored->symmetric || !format.symmetric);
}

Status read_matrix(const Checkpoint& checkpoint, TensorRole role, int layer,
                   const cpu::PackedMatrix& matrix) {
  constexpr std::int64_t kPanel = cpu::PackedMatrix::kPanel;
  const bool as_stored = holds(matrix.format, checkpoint.stored_format(role, layer));
  std::vector<float> rows(static_cast<std::size_t>(as_stored ? 0 : kPanel * matrix.inputs));
  std::int64_t unreleased_bytes = 0;
  for (std::int64_t panel = 0; panel < matrix.panels(); ++panel) {
    const std::int64_t first = panel * kPanel;
    const std::int64_t count = std::min(kPanel, matrix.outputs - first);
    if (as_stored) {
      const QuantizedMatrix stored = checkpoint.read_stored_rows(role, layer, first, count);
      cpu::pack_panel(matrix, panel, stored.view());
    } else {
      checkpoint.read_rows(role, layer, first, count, rows.data());
      const auto read = std::span(rows).first(static_cast<std::size_t>(count * matrix.inputs));
      if (const Status packed = pack_rows(matrix, panel, read); !packed) {
        return make_error(packed.error().code, "layer {}, rows from {} of its {} projection: {}",
                          layer, first, name_of(role), packed.error().message);
      }
    }
    unreleased_bytes += count * matrix.inputs * std::int64_t{sizeof(float)};
    if (unreleased_bytes >= kReleaseEveryBytes) {
      checkpoint.release(role, layer);
      unreleased_bytes = 0;
    }
  }
  checkpoint.release(role, layer);
  return {};
}

cpu::WeightFormat outer_format(std::span<const Precision> layer_precision) {
  const bool all_f32 =
      std::all_of(layer_precision.begin(), layer_precision.end(),
                  [](Precision precision) { return precision == Precision::kF32; });
  return weight_format(all_f32 ? Precision::kF32 : Precision::kBf16);
}

}  // namespace

// w8 is fine enough about zero; fewer bits need the offset that follows the weights.
cpu::WeightFormat weight_format(Precision precision) {
  constexpr int kGroup = 128;
  switch (precision) {
    case Precision::kF32:
      return {.kind = cpu::WeightKind::kF32};
    case Precision::kBf16:
      return {.kind = cpu::WeightKind::kBf16};
    case Precision::kW8:
      return {.kind = cpu::WeightKind::kW8, .group = kGroup, .symmetric = true};
    case Precision::kW4:
      return {.kind = cpu::WeightKind::kW4, .group = kGroup, .symmetric = false};
    case Precision::kW3:
      return {.kind = cpu::WeightKind::kW3, .group = kGroup, .symmetric = false};
  }
  return {};
}

Status pack_rows(const cpu::PackedMatrix& matrix, std::int64_t panel, std::span<const float> rows) {
  const cpu::WeightFormat& format = matrix.format;
  if (!format.quantized()) {
    cpu::pack_panel(matrix, panel, rows.data(), static_cast<int>(std::ssize(rows) / matrix.inputs));
    return {};
  }
  if (!can_quantize(rows)) {
    return make_error(ErrorCode::kUnsupported,
                      "weights beyond {} or not finite, which no quantised precision can hold",
                      kLargestWeight);
  }
  const QuantizedMatrix quantized = round_to_nearest(
      rows, matrix.inputs,
      {.bits = format.bits(), .group = format.group, .symmetric = format.symmetric});
  cpu::pack_panel(matrix, panel, quantized.view());
  return {};
}

std::int64_t ModelWeights::bytes() const {
  std::int64_t bytes = memory.bytes();
  for (const LayerVariant& layer : layers) {
    bytes += layer.memory.bytes();
  }
  return bytes;
}

Result<LayerVariant> load_layer(const Checkpoint& checkpoint, int layer, Precision precision) {
  LayerVariant variant;
  variant.precision = precision;
  if (const Status allocated = allocate(variant, checkpoint.spec(), weight_format(precision));
      !allocated) {
    return allocated.error();
  }
  using Role = TensorRole;
  const std::pair<Role, std::span<float>> vectors[] = {
      {Role::kAttentionNorm, variant.attention_norm},
      {Role::kQueryBias, variant.query_bias},
      {Role::kKeyBias, variant.key_bias},
      {Role::kValueBias, variant.value_bias},
      {Role::kQueryNorm, variant.query_norm},
      {Role::kKeyNorm, variant.key_norm},
      {Role::kAttentionOutputBias, variant.attention_output_bias},
      {Role::kMlpNorm, variant.mlp_norm},
  };
  for (const auto& [role, out] : vectors) {
    read_vector(checkpoint, role, layer, out);
  }
  const std::pair<Role, const cpu::PackedMatrix*> matrices[] = {
      {Role::kQuery, &variant.query}, {Role::kKey, &variant.key},
      {Role::kValue, &variant.value}, {Role::kAttentionOutput, &variant.attention_output},
      {Role::kGate, &variant.gate},   {Role::kUp, &variant.up},
      {Role::kDown, &variant.down},
  };
  for (const auto& [role, matrix] : matrices) {
    if (const Status read = read_matrix(checkpoint, role, layer, *matrix); !read) {
      return read.error();
    }
  }
  return variant;
}

Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const Precision> layer_precision,
                                  const LoadProgress& progress) {
  const ModelSpec& spec = checkpoint.spec();
  check(static_cast<int>(layer_precision.size()) == spec.layers, "one precision per layer");
  const cpu::WeightFormat outer = outer_format(layer_precision);
  std::int64_t total_bytes = needed_bytes<ModelWeights>(spec, outer);
  for (const Precision precision : layer_precision) {
    total_bytes += needed_bytes<LayerVariant>(spec, weight_format(precision));
  }
  ModelWeights weights;
  if (const Status allocated = allocate(weights, spec, outer); !allocated) {
    return allocated.error();
  }
  if (const Status read = read_matrix(checkpoint, TensorRole::kEmbedding, 0, weights.embedding);
      !read) {
    return read.error();
  }
  if (!spec.tied_embeddings) {
    if (const Status read = read_matrix(checkpoint, TensorRole::kOutput, 0, weights.output);
        !read) {
      return read.error();
    }
  }
  read_vector(checkpoint, TensorRole::kFinalNorm, 0, weights.final_norm);

  std::int64_t done_bytes = needed_bytes<ModelWeights>(spec, outer);
  weights.layers.reserve(layer_precision.size());
  for (int layer = 0; layer < spec.layers; ++layer) {
    const Precision precision = layer_precision[static_cast<std::size_t>(layer)];
    Result<LayerVariant> variant = load_layer(checkpoint, layer, precision);
    if (!variant) {
      return variant.error();
    }
    weights.layers.push_back(std::move(*variant));
    done_bytes += needed_bytes<LayerVariant>(spec, weight_format(precision));
    if (progress) {
      progress(done_bytes, total_bytes);
    }
  }
  return weights;
}

}  // namespace protean
