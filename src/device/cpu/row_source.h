#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/packed_matrix.h"

namespace protean::cpu {

struct RmsNorm {
  std::span<const float> weight;
  float eps = 0;
};

// Rows that a product is to have, as they are or still to be normalised: what is read once is made
// while it is read.
struct RowSource {
  std::span<const float> x;  // [rows][inputs]
  RmsNorm norm = {};         // with a weight: of x, as rms_norm does it to f32

  bool made() const { return !norm.weight.empty(); }
};

// Two products of the same rows, of which silu(gate) * up, as swiglu does it, is to be multiplied
// next: some columns of some rows, whole blocks of them.
struct GatedPart {
  const float* gate = nullptr;  // [rows][stride]
  const float* up = nullptr;    // the same
  std::int64_t stride = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_input = 0;  // of the next product: a group's first one
  std::int64_t inputs = 0;
};

}  // namespace protean::cpu
