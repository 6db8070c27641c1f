#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/finite.h"
#include "base/units.h"
#include "cost/shards.h"
#include "model/shard_checkpoint.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kReleaseEveryBytes = 32 * kMiB;  // f32 rows read between releases

// Hands out aligned pieces of a region. Without a base address it only counts bytes, so that one
// layout function serves both purposes.
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
    used_ += round_up(bytes, kLineBytes);
    return piece;
  }

  std::byte* base_;
  std::int64_t used_ = 0;
};

// Matrices come first, so that they fill whole pages (cost/pages.h).
void lay_out_attention(LayerWeights& layer, const ModelSpec& spec, cpu::WeightFormat format,
                       Carver& carver) {
  const AttentionSpec& attention = spec.attention;
  const std::int64_t q = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t kv = std::int64_t{attention.kv_heads} * attention.head_dim;
  layer.query = carver.matrix(format, q, spec.hidden);
  layer.key = carver.matrix(format, kv, spec.hidden);
  layer.value = carver.matrix(format, kv, spec.hidden);
  layer.attention_output = carver.matrix(format, spec.hidden, q);
  if (spec.norms.before) {
    layer.attention_norm = carver.vector(spec.hidden);
    layer.attention_norm_bias = carver.vector(spec.norms.bias ? spec.hidden : 0);
  }
  if (spec.norms.after) {
    layer.post_norm.attention = carver.vector(spec.hidden);
  }
  if (attention.qkv_bias) {
    layer.query_bias = carver.vector(q);
    layer.key_bias = carver.vector(kv);
    layer.value_bias = carver.vector(kv);
  }
  if (attention.qk_norm) {
    layer.query_norm = carver.vector(attention.qk_norm_over_heads ? q : attention.head_dim);
    layer.key_norm = carver.vector(attention.qk_norm_over_heads ? kv : attention.head_dim);
  }
  if (attention.output_bias) {
    layer.attention_output_bias = carver.vector(spec.hidden);
  }
}

void lay_out_mlp(LayerWeights& layer, const ModelSpec& spec, cpu::WeightFormat format,
                 Carver& carver) {
  if (spec.mlp.gated) {
    layer.gate = carver.matrix(format, spec.ffn, spec.hidden);
  }
  layer.up = carver.matrix(format, spec.ffn, spec.hidden);
  layer.down = carver.matrix(format, spec.hidden, spec.ffn);
  if (spec.norms.before) {
    layer.mlp_norm = carver.vector(spec.hidden);
    layer.mlp_norm_bias = carver.vector(spec.norms.bias ? spec.hidden : 0);
  }
  if (spec.norms.after) {
    layer.post_norm.mlp = carver.vector(spec.hidden);
  }
  if (spec.mlp.bias) {
    layer.mlp_bias.gate = carver.vector(spec.mlp.gated ? spec.ffn : 0);
    layer.mlp_bias.up = carver.vector(spec.ffn);
    layer.mlp_bias.down = carver.vector(spec.hidden);
  }
}

std::int64_t lay_out_half(LayerWeights& layer, const ModelSpec& spec, Component half,
                          Precision precision, std::byte* memory) {
  check(half != Component::kEmbeddings, "embeddings are no half of a layer");
  Carver carver(memory);
  const auto lay = half == Component::kAttention ? lay_out_attention : lay_out_mlp;
  lay(layer, spec, weight_format(precision, spec.stored.group), carver);
  layer.precision.of(half) = precision;
  return carver.bytes();
}

std::int64_t lay_out_embeddings(EmbeddingWeights& embeddings, const ModelSpec& spec,
                                Precision precision, std::byte* memory) {
  Carver carver(memory);
  const cpu::WeightFormat format = weight_format(precision, spec.stored.group);
  embeddings.embedding = carver.matrix(format, spec.vocab, spec.hidden);
  embeddings.output =
      spec.tied_embeddings ? embeddings.embedding : carver.matrix(format, spec.vocab, spec.hidden);
  embeddings.final_norm = carver.vector(spec.hidden);
  embeddings.final_norm_bias = carver.vector(spec.norms.bias ? spec.hidden : 0);
  embeddings.output_bias = carver.vector(spec.output_bias ? spec.vocab : 0);
  embeddings.positions =
      carver.vector(spec.learned_positions ? std::int64_t{spec.max_context} * spec.hidden : 0);
  return carver.bytes();
}

std::string place_of(TensorRole role, int layer) {
  return is_outer(role) ? std::string(name_of(role))
                        : fmt::format("layer {}, {}", layer, name_of(role));
}

Error not_finite(std::string_view place) {
  return make_error(ErrorCode::kCorrupt,
                    "{}: the checkpoint has NaN or infinity there: download or convert it again",
                    place);
}

Status read_vector(const Checkpoint& checkpoint, TensorRole role, int layer, std::span<float> out) {
  if (!out.empty()) {
    const int rows = role == TensorRole::kPositions ? checkpoint.spec().max_context : 1;
    checkpoint.read_rows(role, layer, 0, rows, out.data());
    checkpoint.release(role, layer);
  }
  return all_finite(out) ? Status() : Status(not_finite(place_of(role, layer)));
}

// True if the packed format can hold the file's integers, which loses less than rounding again.
// pack_panel() rescales groups of w8 whose codes add up to too much (device/cpu/quantized_rows.h).
bool holds(const cpu::WeightFormat& format, const std::optional<QuantFormat>& stored) {
  return stored && format.quantized() && stored->bits == format.bits() &&
         stored->group == format.group && (stored->symmetric || !format.symmetric);
}

Status read_matrix(const Checkpoint& checkpoint, TensorRole role, int layer,
                   const cpu::PackedMatrix& matrix, const Pace& pace = {}) {
  constexpr std::int64_t kPanel = cpu::PackedMatrix::kPanel;
  const bool as_stored = holds(matrix.format, checkpoint.stored_format(role, layer));
  std::vector<float> rows(static_cast<std::size_t>(as_stored ? 0 : kPanel * matrix.inputs));
  std::int64_t unreleased_bytes = 0;
  for (std::int64_t panel = 0; panel < matrix.panels(); ++panel) {
    const std::int64_t first = panel * kPanel;
    const std::int64_t count = std::min(kPanel, matrix.outputs - first);
    if (as_stored) {
      const QuantizedMatrix stored = checkpoint.read_stored_rows(role, layer, first, count);
      if (!all_finite(stored.scales) || !all_finite(stored.offsets)) {
        return not_finite(fmt::format("{}, rows from {}", place_of(role, layer), first));
      }
      cpu::pack_panel(matrix, panel, stored.view());
    } else {
      checkpoint.read_rows(role, layer, first, count, rows.data());
      const auto read = std::span(rows).first(static_cast<std::size_t>(count * matrix.inputs));
      if (!all_finite(read)) {
        return not_finite(fmt::format("{}, rows from {}", place_of(role, layer), first));
      }
      if (const Status packed = pack_rows(matrix, panel, read); !packed) {
        return make_error(packed.error().code, "{}, rows from {}: {}", place_of(role, layer), first,
                          packed.error().message);
      }
    }
    if (pace && !pace(matrix.panel_bytes())) {
      return make_error(ErrorCode::kUnavailable, "packing the {} was called off",
                        place_of(role, layer));
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

// The tensors of a component that the model has, and their bytes.
struct LaidOut {
  std::vector<std::pair<TensorRole, std::span<float>>> vectors;
  std::vector<std::pair<TensorRole, cpu::PackedMatrix>> matrices;
  std::int64_t bytes = 0;
};

LaidOut lay_out(const ModelSpec& spec, Component component, Precision precision,
                std::byte* memory) {
  if (component == Component::kEmbeddings) {
    EmbeddingWeights embeddings;
    const std::int64_t bytes = lay_out_embeddings(embeddings, spec, precision, memory);
    LaidOut out{{{TensorRole::kFinalNorm, embeddings.final_norm},
                 {TensorRole::kFinalNormBias, embeddings.final_norm_bias},
                 {TensorRole::kOutputBias, embeddings.output_bias},
                 {TensorRole::kPositions, embeddings.positions}},
                {{TensorRole::kEmbedding, embeddings.embedding}},
                bytes};
    if (!spec.tied_embeddings) {
      out.matrices.emplace_back(TensorRole::kOutput, embeddings.output);
    }
    return out;
  }
  LayerWeights layer;
  const std::int64_t bytes = lay_out_half(layer, spec, component, precision, memory);
  if (component == Component::kMlp) {
    LaidOut out{{{TensorRole::kMlpNorm, layer.mlp_norm},
                 {TensorRole::kMlpNormBias, layer.mlp_norm_bias},
                 {TensorRole::kGateBias, layer.mlp_bias.gate},
                 {TensorRole::kUpBias, layer.mlp_bias.up},
                 {TensorRole::kDownBias, layer.mlp_bias.down},
                 {TensorRole::kMlpPostNorm, layer.post_norm.mlp}},
                {{TensorRole::kUp, layer.up}, {TensorRole::kDown, layer.down}},
                bytes};
    if (spec.mlp.gated) {
      out.matrices.emplace(out.matrices.begin(), TensorRole::kGate, layer.gate);
    }
    return out;
  }
  return {{{TensorRole::kAttentionNorm, layer.attention_norm},
           {TensorRole::kAttentionNormBias, layer.attention_norm_bias},
           {TensorRole::kAttentionPostNorm, layer.post_norm.attention},
           {TensorRole::kQueryBias, layer.query_bias},
           {TensorRole::kKeyBias, layer.key_bias},
           {TensorRole::kValueBias, layer.value_bias},
           {TensorRole::kQueryNorm, layer.query_norm},
           {TensorRole::kKeyNorm, layer.key_norm},
           {TensorRole::kAttentionOutputBias, layer.attention_output_bias}},
          {{TensorRole::kQuery, layer.query},
           {TensorRole::kKey, layer.key},
           {TensorRole::kValue, layer.value},
           {TensorRole::kAttentionOutput, layer.attention_output}},
          bytes};
}

void check_aligned(const std::byte* memory) {
  check(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % kLineBytes == 0,
        "a component lies in aligned memory");
}

}  // namespace

// w8 is fine enough to be symmetric; fewer bits need an offset for each group.
cpu::WeightFormat weight_format(Precision precision, int group) {
  constexpr std::array<cpu::WeightFormat, kWeightStorages.size()> kFormats = {{
      {.kind = cpu::WeightKind::kF32},
      {.kind = cpu::WeightKind::kBf16},
      {.kind = cpu::WeightKind::kTwoOfFour},
      {.kind = cpu::WeightKind::kW8, .symmetric = true},
      {.kind = cpu::WeightKind::kW4, .symmetric = false},
      {.kind = cpu::WeightKind::kW3, .symmetric = false},
  }};
  cpu::WeightFormat format = kFormats[static_cast<std::size_t>(precision.weights)];
  if (precision.quantised()) {
    format.group = group;
  }
  if (precision.integer_activations()) {
    format.input_bits = precision.activation_bits;
  }
  return format;
}

Status pack_rows(const cpu::PackedMatrix& matrix, std::int64_t panel, std::span<const float> rows) {
  const cpu::WeightFormat& format = matrix.format;
  if (!format.quantized()) {
    cpu::pack_panel(matrix, panel, rows.data(), static_cast<int>(std::ssize(rows) / matrix.inputs));
    return {};
  }
  if (!can_quantize(rows)) {
    return make_error(ErrorCode::kUnsupported,
                      "weights beyond {}, which no quantised precision can hold", kLargestWeight);
  }
  const QuantizedMatrix quantized = round_to_nearest(
      rows, matrix.inputs,
      {.bits = format.bits(), .group = format.group, .symmetric = format.symmetric});
  cpu::pack_panel(matrix, panel, quantized.view());
  return {};
}

std::int64_t ModelWeights::bytes() const {
  std::int64_t bytes = 0;
  for (const cpu::Region& part : memory) {
    bytes += part.bytes();
  }
  return bytes;
}

std::int64_t component_size(const ModelSpec& spec, Component component, Precision precision) {
  return lay_out(spec, component, precision, nullptr).bytes;
}

void bind_half(LayerWeights& layer, const ModelSpec& spec, Component half, Precision precision,
               std::byte* memory) {
  check_aligned(memory);
  lay_out_half(layer, spec, half, precision, memory);
}

void bind_embeddings(EmbeddingWeights& embeddings, const ModelSpec& spec, Precision precision,
                     std::byte* memory) {
  check_aligned(memory);
  lay_out_embeddings(embeddings, spec, precision, memory);
}

Status load_component(const Checkpoint& checkpoint, const ComponentVariant& which,
                      std::byte* memory, const Pace& pace) {
  if (which.shards > 1) {
    const ShardCheckpoint shard(checkpoint, which.shard, which.shards);
    return load_component(shard, {which.layer, which.component, which.precision}, memory, pace);
  }
  check(which.layer >= 0 && which.layer < checkpoint.spec().layers, "the layer exists");
  check_aligned(memory);
  const LaidOut laid_out = lay_out(checkpoint.spec(), which.component, which.precision, memory);
  // The gaps between tensors are not written by the loops below.
  std::memset(memory, 0, static_cast<std::size_t>(laid_out.bytes));
  for (const auto& [role, out] : laid_out.vectors) {
    if (Status read = read_vector(checkpoint, role, which.layer, out); !read) {
      return read;
    }
  }
  for (const auto& [role, matrix] : laid_out.matrices) {
    if (Status read = read_matrix(checkpoint, role, which.layer, matrix, pace); !read) {
      return read;
    }
  }
  return {};
}

namespace {

// Loads a shard of a component into memory that `weights` then owns, and returns its address.
Result<std::byte*> load_shard(ModelWeights& weights, const Checkpoint& checkpoint,
                              const ComponentVariant& which) {
  Result<cpu::Region> region =
      cpu::Region::map(component_size(weights.shard_spec, which.component, which.precision));
  if (!region) {
    return region.error();
  }
  if (const Status loaded = load_component(checkpoint, which, region->data()); !loaded) {
    return loaded.error();
  }
  weights.memory.push_back(std::move(*region));
  return weights.memory.back().data();
}

std::int64_t held_bytes(const ModelWeights& weights, int layer, const LayerPrecision& precision) {
  std::int64_t bytes = 0;
  for (const Component half : kLayerHalves) {
    bytes += weights.holding.of(layer, half).count *
             component_size(weights.shard_spec, half, precision.of(half));
  }
  return bytes;
}

}  // namespace

ModelWeights::ModelWeights(const ModelSpec& spec, Holding holding, int shards)
    : shards(shards),
      holding(std::move(holding)),
      shard_spec(protean::shard_spec(spec, shards)),
      embeddings(static_cast<std::size_t>(shards)),
      layers(this->holding.layers.size() * static_cast<std::size_t>(shards)) {}

Result<ModelWeights> load_embeddings(const Checkpoint& checkpoint, Precision precision,
                                     Holding holding, int shards) {
  ModelWeights weights(checkpoint.spec(), std::move(holding), shards);
  const ShardRun& run = weights.holding.embeddings;
  for (int shard = run.first; shard < run.end(); ++shard) {
    Result<std::byte*> memory =
        load_shard(weights, checkpoint, {0, Component::kEmbeddings, precision, shard, shards});
    if (!memory) {
      return memory.error();
    }
    bind_embeddings(weights.embeddings[static_cast<std::size_t>(shard)], weights.shard_spec,
                    precision, *memory);
  }
  return weights;
}

Status load_layer(ModelWeights& weights, const Checkpoint& checkpoint, int layer,
                  const LayerPrecision& precision) {
  for (const Component half : kLayerHalves) {
    const ShardRun& run = weights.holding.of(layer, half);
    for (int shard = run.first; shard < run.end(); ++shard) {
      Result<std::byte*> memory =
          load_shard(weights, checkpoint, {layer, half, precision.of(half), shard, weights.shards});
      if (!memory) {
        return memory.error();
      }
      bind_half(weights.shard(layer, shard), weights.shard_spec, half, precision.of(half), *memory);
    }
  }
  return {};
}

Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const HeldForm& form,
                                  const LoadProgress& progress) {
  check(static_cast<int>(form.layers.size()) == checkpoint.spec().layers,
        "one precision per layer");
  Result<ModelWeights> weights =
      load_embeddings(checkpoint, form.embeddings, form.holding, form.shards);
  if (!weights) {
    return weights;
  }
  std::int64_t total_bytes = weights->bytes();
  for (int layer = 0; layer < checkpoint.spec().layers; ++layer) {
    total_bytes += held_bytes(*weights, layer, form.layers[static_cast<std::size_t>(layer)]);
  }
  for (int layer = 0; layer < checkpoint.spec().layers; ++layer) {
    const LayerPrecision& precision = form.layers[static_cast<std::size_t>(layer)];
    if (const Status loaded = load_layer(*weights, checkpoint, layer, precision); !loaded) {
      return loaded.error();
    }
    if (progress) {
      progress(weights->bytes(), total_bytes);
    }
  }
  return weights;
}

Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const LayerPrecision> layer_precision,
                                  Precision embeddings, const LoadProgress& progress) {
  return load_weights(checkpoint,
                      {.layers = layer_precision,
                       .embeddings = embeddings,
                       .holding = whole_model(checkpoint.spec().layers, 1, DeviceId{})},
                      progress);
}

}  // namespace protean
