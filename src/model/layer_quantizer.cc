#include "model/layer_quantizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "device/cpu/bf16.h"
#include "quant/awq.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

using Role = TensorRole;

void multiply_columns(std::vector<float>& matrix, std::span<const float> scales) {
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] *= scales[i % scales.size()];
  }
}

void divide_rows(std::vector<float>& matrix, std::span<const float> scales) {
  const std::size_t width = matrix.size() / scales.size();
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] /= scales[i / width];
  }
}

// Finds AWQ's scales and applies them to a layer.
class LayerScaler {
 public:
  LayerScaler(cpu::Team& team, LayerTensors& layer, LayerStatistics& statistics,
              const QuantFormat& format)
      : team_(team), layer_(layer), statistics_(statistics), format_(format) {}

  void after_norm(Role norm, std::span<const Role> readers);
  void after_values();
  void after_up();

 private:
  std::vector<float> search(std::span<const Role> readers,
                            std::span<const std::int32_t> shared = {});
  void multiply(std::span<const Role> readers, std::span<const float> scales);

  cpu::Team& team_;
  LayerTensors& layer_;
  LayerStatistics& statistics_;
  QuantFormat format_;
};

std::vector<float> LayerScaler::search(std::span<const Role> readers,
                                       std::span<const std::int32_t> shared) {
  std::vector<std::span<const float>> matrices;
  for (const Role reader : readers) {
    matrices.emplace_back(layer_.tensor(reader));
  }
  return search_scales(team_, matrices, statistics_.of(input_of(readers.front())), format_, shared);
}

// Searches scales for the matrices that read an input, and divides the input's statistics by them.
void LayerScaler::multiply(std::span<const Role> readers, std::span<const float> scales) {
  for (const Role reader : readers) {
    multiply_columns(layer_.tensor(reader), scales);
  }
  statistics_.of(input_of(readers.front())).divide(scales);
}

// Divides the norm by the scales and rounds it to bf16, as it is stored. The matrices are
// multiplied by exactly what the norm lost.
void LayerScaler::after_norm(Role norm, std::span<const Role> readers) {
  std::vector<float> scales = search(readers);
  std::vector<float>& weights = layer_.tensor(norm);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float divided = cpu::float_from(cpu::bf16_from(weights[i] / scales[i]));
    scales[i] = divided == 0.0F ? 1.0F : weights[i] / divided;
    weights[i] = divided;
  }
  multiply(readers, scales);
}

// Divides the value rows. Query heads of one group read the same value rows and share scales.
void LayerScaler::after_values() {
  constexpr Role kReaders[] = {Role::kAttentionOutput};
  const AttentionSpec& attention = layer_.spec().attention;
  const int group = attention.heads / attention.kv_heads;
  std::vector<std::int32_t> value_row(
      static_cast<std::size_t>(layer_.width(Role::kAttentionOutput)));
  for (std::size_t i = 0; i < value_row.size(); ++i) {
    const int head = static_cast<int>(i) / attention.head_dim;
    value_row[i] = head / group * attention.head_dim + static_cast<int>(i) % attention.head_dim;
  }
  const std::vector<float> scales = search(kReaders, value_row);
  std::vector<float> row_scales(value_row.size() / static_cast<std::size_t>(group));
  for (std::size_t i = 0; i < value_row.size(); ++i) {
    row_scales[static_cast<std::size_t>(value_row[i])] = scales[i];
  }
  divide_rows(layer_.tensor(Role::kValue), row_scales);
  divide_rows(layer_.tensor(Role::kValueBias), row_scales);
  multiply(kReaders, scales);
}

void LayerScaler::after_up() {
  constexpr Role kReaders[] = {Role::kDown};
  const std::vector<float> scales = search(kReaders);
  divide_rows(layer_.tensor(Role::kUp), scales);
  divide_rows(layer_.tensor(Role::kUpBias), scales);
  multiply(kReaders, scales);
}

void scale_layer(cpu::Team& team, LayerTensors& layer, LayerStatistics& statistics,
                 const QuantFormat& format) {
  constexpr Role kProjections[] = {Role::kQuery, Role::kKey, Role::kValue};
  constexpr Role kGateAndUp[] = {Role::kGate, Role::kUp};
  LayerScaler scaler(team, layer, statistics, format);
  scaler.after_norm(Role::kAttentionNorm, kProjections);
  scaler.after_values();
  scaler.after_norm(Role::kMlpNorm, kGateAndUp);
  scaler.after_up();
}

// Quantises rows on all threads, in pieces large enough for efficient matrix arithmetic.
template <class QuantizeRows>
QuantizedMatrix quantize_pieces(cpu::Team& team, std::span<const float> weights,
                                std::int64_t inputs, const QuantFormat& format,
                                const QuantizeRows& quantize_rows) {
  constexpr std::int64_t kPiece = 128;
  const std::int64_t rows = std::ssize(weights) / inputs;
  QuantizedMatrix whole = QuantizedMatrix::sized(format, rows, inputs);
  team.run((rows + kPiece - 1) / kPiece, [&](std::int64_t piece, int) {
    const std::int64_t first = piece * kPiece;
    const std::int64_t count = std::min(kPiece, rows - first);
    const QuantizedMatrix part = quantize_rows(weights.subspan(
        static_cast<std::size_t>(first * inputs), static_cast<std::size_t>(count * inputs)));
    std::copy(part.codes.begin(), part.codes.end(), whole.codes.begin() + first * inputs);
    const std::int64_t at = first * whole.groups();
    std::copy(part.scales.begin(), part.scales.end(), whole.scales.begin() + at);
    std::copy(part.offsets.begin(), part.offsets.end(), whole.offsets.begin() + at);
  });
  return whole;
}

Status check_weights(const LayerTensors& layer) {
  for (const Role role : kLayerMatrices) {
    if (!can_quantize(layer.tensor(role))) {
      return make_error(ErrorCode::kUnsupported,
                        "tensor {} has weights that are not finite or beyond {}: it cannot be "
                        "quantised",
                        tensor_name(architectures().front().hf_tensors->names, role, 0),
                        kLargestWeight);
    }
  }
  return {};
}

Result<QuantizedLayer> apply_gptq(cpu::Team& team, const LayerTensors& layer,
                                  LayerStatistics& statistics, const QuantizeOptions& options) {
  QuantizedLayer quantized;
  std::optional<Gptq> gptq;
  for (std::size_t i = 0; i < kLayerMatrices.size(); ++i) {
    const Role role = kLayerMatrices[i];
    const bool same_input = i > 0 && input_of(role) == input_of(kLayerMatrices[i - 1]);
    if (!same_input) {
      auto factored = Gptq::factor(statistics.of(input_of(role)), options.format, options.gptq);
      if (!factored) {
        return factored.error();
      }
      gptq = *std::move(factored);
    }
    quantized[i] = quantize_pieces(
        team, layer.tensor(role), statistics.of(input_of(role)).inputs(), options.format,
        [&](std::span<const float> rows) { return gptq->quantize(rows); });
  }
  return quantized;
}

}  // namespace

LayerInput input_of(TensorRole role) {
  switch (role) {
    case TensorRole::kAttentionOutput:
      return LayerInput::kAttentionOutput;
    case TensorRole::kGate:
    case TensorRole::kUp:
      return LayerInput::kMlp;
    case TensorRole::kDown:
      return LayerInput::kDown;
    default:
      return LayerInput::kAttention;
  }
}

Result<QuantizedLayer> quantize_layer(cpu::Team& team, LayerTensors& layer,
                                      LayerStatistics* statistics, const QuantizeOptions& options) {
  check(statistics != nullptr || options.method == QuantMethod::kRoundToNearest,
        "AWQ and GPTQ need statistics");
  if (const Status finite = check_weights(layer); !finite) {
    return finite.error();
  }
  if (scales_inputs(options.method)) {
    scale_layer(team, layer, *statistics, options.format);
  }
  QuantizedLayer quantized;
  if (options.method == QuantMethod::kGptq || options.method == QuantMethod::kAwqGptq) {
    auto found = apply_gptq(team, layer, *statistics, options);
    if (!found) {
      return found;
    }
    quantized = *std::move(found);
  } else {
    for (std::size_t i = 0; i < kLayerMatrices.size(); ++i) {
      const Role role = kLayerMatrices[i];
      const std::span<const float> weights = layer.tensor(role);
      const std::int64_t inputs = layer.width(role);
      quantized[i] =
          options.method == QuantMethod::kAwq
              ? round_clipped(team, weights, statistics->of(input_of(role)), options.format)
              : quantize_pieces(team, weights, inputs, options.format,
                                [&](std::span<const float> rows) {
                                  return round_to_nearest(rows, inputs, options.format);
                                });
    }
  }
  for (std::size_t i = 0; i < kLayerMatrices.size(); ++i) {
    dequantize_rows(quantized[i].view(), 0, quantized[i].rows,
                    layer.tensor(kLayerMatrices[i]).data());
  }
  return quantized;
}

}  // namespace protean
