#pragma once

#include "device/cpu/matmul_task.h"

namespace protean::cpu {

// Returns the most rows that vectors multiply faster than tiles. Tiles read bf16 as it is stored,
// and codes of few bits take more operations to unpack than bytes. 2:4 weights are for tiles only.
constexpr int most_few_rows(WeightKind kind) {
  switch (kind) {
    case WeightKind::kW8:
      return 4;
    case WeightKind::kBf16:
    case WeightKind::kW4:
    case WeightKind::kW3:
      return 2;
    case WeightKind::kF32:
    case WeightKind::kTwoOfFour:
      return 0;
  }
  return 0;
}

// Returns true if multiply_few_rows() computes this task of a product by tiles: it has at most
// most_few_rows(), which it has as floats, and tiles round like the manual says.
bool are_few_rows(const MatmulOperands& operands, const MatmulTask& task, bool emulated);

// Computes a task of few rows with vectors, with the bits that tiles would give the rows. Tiles
// would multiply rows of zeros too, read codes only after they were unpacked to memory, and read
// one panel at a time, which is slower than two.
void multiply_few_rows(const MatmulOperands& operands, const MatmulTask& task);

}  // namespace protean::cpu
