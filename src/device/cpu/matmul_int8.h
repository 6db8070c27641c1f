#pragma once

#include "device/cpu/matmul_task.h"

namespace protean::cpu {

// Computes a task of a product of integers with vectors. operands.int8 is set.
void multiply_int8(const MatmulOperands& operands, const MatmulTask& task);

}  // namespace protean::cpu
