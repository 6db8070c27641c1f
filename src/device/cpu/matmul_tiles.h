#pragma once

#include "base/check.h"
#include "device/cpu/matmul_part.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// What a part may hold, so that its inputs, sums and unpacked weights stay in L2.
constexpr int kMaxTiledRows = 256;
constexpr int kMaxTiledPanels = 16;

inline void check_tiled(const MatmulPart& part) {
  check(part.rows <= kMaxTiledRows && part.panels <= kMaxTiledPanels, "a part fits its buffers");
  check(part.first_row % kTileRows16 == 0, "a part begins with a row tile");
}

// One part of a product by AMX tiles, or by their emulation. Weights are bf16.
void multiply_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated);

// The same over codes, whose rows have group_sums if there are offsets.
void multiply_codes_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated);

// The same with integers, which quantize_rows arranged for tiles.
void multiply_int8_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated);

}  // namespace protean::cpu
