#pragma once

#include <vector>

#include "quant/quantized_matrix.h"

namespace protean {

// Returns the weights [rows][inputs].
inline std::vector<float> dequantized(const QuantizedMatrix& matrix) {
  std::vector<float> weights(static_cast<std::size_t>(matrix.rows * matrix.inputs));
  dequantize_rows(matrix.view(), 0, matrix.rows, weights.data());
  return weights;
}

}  // namespace protean
