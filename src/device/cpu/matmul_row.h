#pragma once

#include "device/cpu/matmul_task.h"

namespace protean::cpu {

// Returns true if multiply_row() computes this task of a product by tiles: it has one row, weights
// are codes, and tiles round like the manual says. A row of bf16 weights is read faster by tiles.
bool multiplies_row(const MatmulOperands& operands, const MatmulTask& task, bool emulated);

// Computes a task of one row over codes with vectors, with the bits that tiles would give the row.
// For tiles, codes would be unpacked to memory and multiplied with 15 rows of zeros too.
void multiply_row(const MatmulOperands& operands, const MatmulTask& task);

}  // namespace protean::cpu
