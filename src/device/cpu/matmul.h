#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/cpu/int8_rows.h"
#include "device/cpu/matmul_isa.h"
#include "device/cpu/matmul_rows.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/row_source.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// Returns the instruction set that kBest means for bf16 on this machine.
MatmulIsa best_isa();

struct MatmulOptions {
  const float* bias = nullptr;  // [outputs]
  bool accumulate = false;
};

// One of several products with the same rows.
struct MatmulTarget {
  const PackedMatrix* weights = nullptr;
  std::span<float> out;
  MatmulOptions options;
};

// Computes out[m][outputs] = x[m][inputs] * W^T, plus bias if set, plus out if `accumulate`. The
// bits of a row of out do not depend on m, the thread count or the row's place in the batch. The
// instruction set was chosen when the rows were arranged.
//
// Denormals count as zeros. With vectors, products are exact for bf16 weights and for codes, and
// sums are f32. Each element is one chain of multiply-adds, from zero, over pairs of inputs in
// ascending order; in a pair the odd input is first, as in dot instructions, which give the same
// bits. Then bias and out are added. With quantised weights there is one such chain over the codes
// of each group, and the element is a chain over groups of scale * (chain of the group), then
// offset * (sum of the group's inputs). With AMX a chain adds the sums of 32 inputs each that
// TDPBF16PS defines; the rest is equal.
void matmul(Team& team, const MatmulRows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// Arranges the rows x[m][inputs] for the best instruction set, in memory that it allocates, and
// multiplies.
void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// Multiplies integers, for weights with int8_inputs(). The products of a group's codes and integers
// are added exactly. An element is a chain over groups of scale * the row's scale * that sum, then
// offset * the row's scale * the sum of the integers. All instruction sets give the same bits.
void matmul(Team& team, const Int8Rows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// Computes several products with the same bits as single ones. Threads do not wait between
// products.
void matmul(Team& team, const MatmulRows& x, std::span<const MatmulTarget> targets);
void matmul(Team& team, const Int8Rows& x, std::span<const MatmulTarget> targets);

// The matrices of a layer's MLP, and its activation.
struct GatedMatrices {
  const PackedMatrix* gate = nullptr;
  const PackedMatrix* up = nullptr;
  const PackedMatrix* down = nullptr;
  Activation activation = Activation::kSilu;
};

// Computes activation(x * gate) * (x * up) as rows for `down`, with the same bits as separate
// passes. A thread rounds and arranges the columns that it has just multiplied, while they are in
// its cache. `memory` is as for arrange_rows() and does not overlap x. Returns nothing, without
// computing anything, if this is impossible (the two kinds of rows have different blocks) or slower
// (there are few rows or too few tasks, or the rows of `down` are not multiplied with tiles or as
// integers).
std::optional<MatmulRows> matmul_gated(Team& team, const MatmulRows& x,
                                       const GatedMatrices& matrices, std::span<std::byte> memory);
std::optional<Int8Rows> matmul_gated(Team& team, const Int8Rows& x, const GatedMatrices& matrices,
                                     std::span<std::byte> memory);

}  // namespace protean::cpu
