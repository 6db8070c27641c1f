#pragma once

#include "device/cpu/matmul_part.h"

namespace protean::cpu {

// Computes a part of a product of integers with vectors. operands.int8 is set.
void multiply_int8(const MatmulOperands& operands, const MatmulPart& part);

}  // namespace protean::cpu
