#pragma once

#include "base/check.h"
#include "device/cpu/matmul_task.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// Limits of a task, so that its inputs, sums and unpacked weights stay in L2.
constexpr int kMaxTiledRows = 256;
constexpr int kMaxTiledPanels = 16;

inline void check_tiled(const MatmulTask& task) {
  check(task.rows <= kMaxTiledRows && task.panels <= kMaxTiledPanels, "a task fits its buffers");
  check(task.first_row % kTileRows16 == 0, "a task begins with a row tile");
}

// Computes a task of a product with bf16 weights, with AMX tiles or their emulation.
void multiply_tiled(const MatmulOperands& operands, const MatmulTask& task, bool emulated);

// Computes a task over codes. The rows have group_sums if the weights have offsets.
void multiply_codes_tiled(const MatmulOperands& operands, const MatmulTask& task, bool emulated);

// Computes a task with integer activations, which quantize_rows() arranged for tiles.
void multiply_int8_tiled(const MatmulOperands& operands, const MatmulTask& task, bool emulated);

}  // namespace protean::cpu
