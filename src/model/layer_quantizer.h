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

// The matrices of a layer, in the order of use.
inline constexpr std::array kLayerMatrices = {
    TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue, TensorRole::kAttentionOutput,
    TensorRole::kGate,  TensorRole::kUp,  TensorRole::kDown};
using QuantizedLayer = std::array<QuantizedMatrix, kLayerMatrices.size()>;  // in this order

// Returns the activations that a matrix is multiplied with.
LayerInput input_of(TensorRole role);

// Quantises a layer's matrices. Afterwards `layer` holds what the quantised layer computes with:
// the dequantised weights and, for AWQ, norms, value rows and up rows divided by the scales that
// the following matrices were multiplied with; these norms are exact in bf16. `statistics` describe
// the layer before the call and are consumed; round to nearest needs none. Fails on weights that no
// scale can hold.
Result<QuantizedLayer> quantize_layer(cpu::Team& team, LayerTensors& layer,
                                      LayerStatistics* statistics, const QuantizeOptions& options);

}  // namespace protean
