#pragma once

#include "base/check.h"
#include "device/cpu/matmul_part.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// Limits of a part, so that its inputs, sums and unpacked weights stay in L2.
constexpr int kMaxTiledRows = 256;
constexpr int kMaxTiledPanels = 16;

inline void check_tiled(const MatmulPart& part) {
  check(part.rows <= kMaxTiledRows && part.panels <= kMaxTiledPanels, "a part fits its buffers");
  check(part.first_row % kTileRows16 == 0, "a part begins with a row tile");
}

// Computes a part of a product with bf16 weights, with AMX tiles or their emulation.
void multiply_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated);

// Computes a part over codes. The rows have group_sums if the weights have offsets.
void multiply_codes_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated);

// Computes a part with integer activations, which quantize_rows() arranged for tiles.
void multiply_int8_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated);

}  // namespace protean::cpu
