#include "model/weights.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace protean {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kReleaseEveryBytes = 32 * kMiB;  // of rows read as f32

Result<cpu::Element> element_of(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return cpu::Element::kF32;
    case Precision::kBf16:
      return cpu::Element::kBf16;
    default:
      return make_error(ErrorCode::kUnsupported,
                        "layers at {} are not supported on this device: use bf16 or f32",
                        to_string(precision));
  }
}

// Hands out aligned pieces of a region. Without a base it only adds up what will be needed, so one
// layout function serves for both.
class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}

  cpu::PackedMatrix matrix(cpu::Element element, std::int64_t outputs, std::int64_t inputs) {
    cpu::PackedMatrix matrix{.element = element, .outputs = outputs, .inputs = inputs};
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

void lay_out(LayerVariant& layer, const ModelSpec& spec, cpu::Element element, Carver& carver) {
  const AttentionSpec& attention = spec.attention;
  const std::int64_t q = std::int64_t{attention.heads} * attention.head_dim;
  const std::int64_t kv = std::int64_t{attention.kv_heads} * attention.head_dim;
  layer.attention_norm = carver.vector(spec.hidden);
  layer.query = carver.matrix(element, q, spec.hidden);
  layer.key = carver.matrix(element, kv, spec.hidden);
  layer.value = carver.matrix(element, kv, spec.hidden);
  if (attention.qkv_bias) {
    layer.query_bias = carver.vector(q);
    layer.key_bias = carver.vector(kv);
    layer.value_bias = carver.vector(kv);
  }
  if (attention.qk_norm) {
    layer.query_norm = carver.vector(attention.head_dim);
    layer.key_norm = carver.vector(attention.head_dim);
  }
  layer.attention_output = carver.matrix(element, spec.hidden, q);
  if (attention.output_bias) {
    layer.attention_output_bias = carver.vector(spec.hidden);
  }
  layer.mlp_norm = carver.vector(spec.hidden);
  layer.gate = carver.matrix(element, spec.ffn, spec.hidden);
  layer.up = carver.matrix(element, spec.ffn, spec.hidden);
  layer.down = carver.matrix(element, spec.hidden, spec.ffn);
}

void lay_out(ModelWeights& weights, const ModelSpec& spec, cpu::Element element, Carver& carver) {
  weights.embedding = carver.matrix(element, spec.vocab, spec.hidden);
  weights.output =
      spec.tied_embeddings ? weights.embedding : carver.matrix(element, spec.vocab, spec.hidden);
  weights.final_norm = carver.vector(spec.hidden);
}

template <class Weights>
std::int64_t needed_bytes(const ModelSpec& spec, cpu::Element element) {
  Weights weights;
  Carver carver;
  lay_out(weights, spec, element, carver);
  return carver.bytes();
}

template <class Weights>
Status allocate(Weights& weights, const ModelSpec& spec, cpu::Element element) {
  Result<cpu::Region> region = cpu::Region::map(needed_bytes<Weights>(spec, element));
  if (!region) {
    return region.error();
  }
  weights.memory = std::move(*region);
  Carver carver(weights.memory.data());
  lay_out(weights, spec, element, carver);
  return {};
}

void read_vector(const Checkpoint& checkpoint, TensorRole role, int layer, std::span<float> out) {
  if (!out.empty()) {
    checkpoint.read_rows(role, layer, 0, 1, out.data());
    checkpoint.release(role, layer);
  }
}

void read_matrix(const Checkpoint& checkpoint, TensorRole role, int layer,
                 const cpu::PackedMatrix& matrix) {
  constexpr std::int64_t kPanel = cpu::PackedMatrix::kPanel;
  std::vector<float> rows(static_cast<std::size_t>(kPanel * matrix.inputs));
  std::int64_t unreleased_bytes = 0;
  for (std::int64_t panel = 0; panel < matrix.panels(); ++panel) {
    const std::int64_t first = panel * kPanel;
    const std::int64_t count = std::min(kPanel, matrix.outputs - first);
    checkpoint.read_rows(role, layer, first, count, rows.data());
    cpu::pack_panel(matrix, panel, rows.data(), static_cast<int>(count));
    unreleased_bytes += count * matrix.inputs * std::int64_t{sizeof(float)};
    if (unreleased_bytes >= kReleaseEveryBytes) {
      checkpoint.release(role, layer);
      unreleased_bytes = 0;
    }
  }
  checkpoint.release(role, layer);
}

cpu::Element outer_element(std::span<const Precision> layer_precision) {
  const bool all_f32 =
      std::all_of(layer_precision.begin(), layer_precision.end(),
                  [](Precision precision) { return precision == Precision::kF32; });
  return all_f32 ? cpu::Element::kF32 : cpu::Element::kBf16;
}

}  // namespace

std::int64_t ModelWeights::bytes() const {
  std::int64_t bytes = memory.bytes();
  for (const LayerVariant& layer : layers) {
    bytes += layer.memory.bytes();
  }
  return bytes;
}

Result<LayerVariant> load_layer(const Checkpoint& checkpoint, int layer, Precision precision) {
  const Result<cpu::Element> element = element_of(precision);
  if (!element) {
    return element.error();
  }
  LayerVariant variant;
  variant.precision = precision;
  if (const Status allocated = allocate(variant, checkpoint.spec(), *element); !allocated) {
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
    read_matrix(checkpoint, role, layer, *matrix);
  }
  return variant;
}

Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const Precision> layer_precision,
                                  const LoadProgress& progress) {
  const ModelSpec& spec = checkpoint.spec();
  check(static_cast<int>(layer_precision.size()) == spec.layers, "one precision per layer");
  const cpu::Element outer = outer_element(layer_precision);
  std::int64_t total_bytes = needed_bytes<ModelWeights>(spec, outer);
  for (const Precision precision : layer_precision) {
    const Result<cpu::Element> element = element_of(precision);
    if (!element) {
      return element.error();  // before anything is read
    }
    total_bytes += needed_bytes<LayerVariant>(spec, *element);
  }
  ModelWeights weights;
  if (const Status allocated = allocate(weights, spec, outer); !allocated) {
    return allocated.error();
  }
  read_matrix(checkpoint, TensorRole::kEmbedding, 0, weights.embedding);
  if (!spec.tied_embeddings) {
    read_matrix(checkpoint, TensorRole::kOutput, 0, weights.output);
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
    done_bytes += needed_bytes<LayerVariant>(spec, *element_of(precision));
    if (progress) {
      progress(done_bytes, total_bytes);
    }
  }
  return weights;
}

}  // namespace protean
