#pragma once

#include "device/cpu/matmul_task.h"

namespace protean::cpu {

// Returns the most rows that are multiplied so. With more, unpacking codes once for tiles is
// faster; bytes take fewer operations to unpack than codes of fewer bits.
constexpr int most_few_rows(WeightKind kind) {
  return kind == WeightKind::kW8 ? 4 : 2;
}

// Returns true if multiply_few_rows() computes this task of a product by tiles: it has few rows,
// weights are codes, and tiles round like the manual says. bf16 weights are read faster by tiles.
bool are_few_rows(const MatmulOperands& operands, const MatmulTask& task, bool emulated);

// Computes a task of at most most_few_rows() rows over codes with vectors, with the bits that tiles
// would give the rows. For tiles, codes would be unpacked to memory and multiplied with rows of
// zeros too.
void multiply_few_rows(const MatmulOperands& operands, const MatmulTask& task);

}  // namespace protean::cpu
