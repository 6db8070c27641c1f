#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/cpu/int8_rows.h"
#include "device/cpu/matmul_rows.h"
#include "device/cpu/matmul_unit.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// What kBest stands for on this machine, of bf16.
MatmulUnit best_unit();

struct MatmulOptions {
  const float* bias = nullptr;  // [outputs]
  bool accumulate = false;
};

// One of the products that several matrices have with the same rows.
struct MatmulTarget {
  const PackedMatrix* weights = nullptr;
  std::span<float> out;
  MatmulOptions options;
};

// out[m][outputs] = x[m][inputs] * W^T (+ bias) (+ out, when accumulate). A row of out is the same
// bits whatever m, the thread count and the row's place in the batch. Which unit multiplies was
// chosen when the rows were arranged.
//
// With vectors products with bf16 weights and with codes are exact, sums are f32 and denormals
// count as zeros: each element is one chain of multiply-adds from zero over pairs of inputs in
// ascending order, of a pair the odd one first (as dot instructions do it: the same bits), plus
// bias, plus out. Over quantised weights such a chain runs over each group's codes, and the element
// is the chain of scale * (the group's chain), then offset * (the group's inputs). With AMX a chain
// is the sum over every 32 inputs of what TDPBF16PS defines, and the rest is the same.
void matmul(Team& team, const MatmulRows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// The same for rows that nobody has arranged, by the best unit; it takes memory to arrange them.
void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// The same for weights with int8_inputs(). A group's codes times its integers are added exactly,
// and an element is the chain of scale * the row's scale * that sum, then offset * the row's scale
// * the sum of its integers: one definition and the same bits for all units.
void matmul(Team& team, const Int8Rows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// Several at once, of the same bits: threads do not wait for each other between them.
void matmul(Team& team, const MatmulRows& x, std::span<const MatmulTarget> targets);
void matmul(Team& team, const Int8Rows& x, std::span<const MatmulTarget> targets);

// A layer's matrices between which SwiGLU stands.
struct GatedMatrices {
  const PackedMatrix* gate = nullptr;
  const PackedMatrix* up = nullptr;
  const PackedMatrix* down = nullptr;  // what is made is for it
};

// silu(x * gate) * (x * up), as the rows that `down` wants, of the bits that passes of their own
// make: whoever has multiplied some columns makes rows of them while they are near. Memory is as
// for quantize_rows and apart from x's. Nothing is done, and returned, where that does not go (rows
// of the two kinds differ in their blocks) or does not pay (rows are few, or parts too few).
std::optional<Int8Rows> matmul_gated(Team& team, const Int8Rows& x, const GatedMatrices& matrices,
                                     std::span<std::byte> memory);

}  // namespace protean::cpu
