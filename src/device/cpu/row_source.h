#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/packed_matrix.h"

namespace protean::cpu {

struct RmsNorm {
  std::span<const float> weight;
  float eps = 0;
};

// The rows of a product. If there is a norm, it is applied while the rows are read.
struct RowSource {
  std::span<const float> x;  // [rows][inputs]
  RmsNorm norm = {};         // applied to x like rms_norm() with kF32, unless its weight is empty

  bool made() const { return !norm.weight.empty(); }
};

// Some rows and columns of the gate and up products, from which silu(gate) * up is computed like
// swiglu() does. Rows are whole blocks of the next product.
struct GatedOutputs {
  const float* gate = nullptr;  // [rows][stride]
  const float* up = nullptr;    // the same
  std::int64_t stride = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_input = 0;  // input of the next product that begins a group
  std::int64_t inputs = 0;
};

}  // namespace protean::cpu
