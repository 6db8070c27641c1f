#pragma once

#include "device/cpu/matmul_part.h"

namespace protean::cpu {

// The most rows that one tile of any instruction set has.
constexpr int kMaxVectorRows = 12;

// A part by multiply-adds of f32, or with VDPBF16PS (dot.h) where rows are pairs: the same bits.
void multiply_vectors(const MatmulOperands& operands, const MatmulPart& part);

}  // namespace protean::cpu
