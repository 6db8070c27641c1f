#pragma once

#include "device/cpu/matmul_task.h"

namespace protean::cpu {

// The most rows of a tile, over all instruction sets.
constexpr int kMaxVectorRows = 12;

// Computes a task with f32 multiply-adds, or with VDPBF16PS (dot.h) if the rows are pairs of bf16.
// The bits are the same.
void multiply_vectors(const MatmulOperands& operands, const MatmulTask& task);

}  // namespace protean::cpu
