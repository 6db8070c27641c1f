#pragma once

#include <array>

#include "base/result.h"
#include "model/calibration.h"
#include "model/layer_tensors.h"
#include "quant/gptq.h"
#include "quant/quantized_matrix.h"

namespace protean {

enum class QuantMethod : std::uint8_t {
  kRoundToNearest,
  kAwq,
  kGptq,
  kAwqGptq,  // AWQ's scales, then GPTQ's rounding
};

constexpr bool scales_inputs(QuantMethod method) {
  return method == QuantMethod::kAwq || method == QuantMethod::kAwqGptq;
}

struct QuantizeOptions {
  QuantMethod method = QuantMethod::kRoundToNearest;
  QuantFormat format;
  GptqOptions gptq;
};

// The matrices of a layer, in the order of their use.
inline constexpr std::array kLayerMatrices = {
    TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue, TensorRole::kAttentionOutput,
    TensorRole::kGate,  TensorRole::kUp,  TensorRole::kDown};
using QuantizedLayer = std::array<QuantizedMatrix, kLayerMatrices.size()>;  // as kLayerMatrices

// Quantises the matrices of a layer and changes `layer` to the weights of the quantised layer. With
// AWQ its norms, value rows and up rows are divided by the scales of the matrices after them, and
// norms are exact in bf16. `statistics` are those of the original layer and are modified; rounding
// to nearest needs none. Fails if a weight is too large for any scale.
Result<QuantizedLayer> quantize_layer(cpu::Team& team, LayerTensors& layer,
                                      LayerStatistics* statistics, const QuantizeOptions& options);

}  // namespace protean
