#pragma once

#include "device/cpu/matmul_part.h"

namespace protean::cpu {

// A part of a product with integers (operands.int8 is set), by vectors.
void multiply_int8(const MatmulOperands& operands, const MatmulPart& part);

}  // namespace protean::cpu
