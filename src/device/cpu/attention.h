#pragma once

#include <span>

#include "device/cpu/kv_layer.h"
#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// out[row] = softmax(q k^T / sqrt(head_dim)) v over positions <= the row's own and, if window > 0,
// > its own - window. q and out are [rows][heads * head_dim]. KV is read in ascending tiles of 64
// positions, which are summed up within segments of 256 positions, which are then merged in
// ascending order; both begin at multiples of their size. So a row's bits do not depend on batch,
// chunking, threads, block size, or on whether segments were computed apart to occupy all threads.
// What lies where a row may not look has no effect on it, and blocks that no row of the call sees
// are not read.
struct AttentionOptions {
  int heads = 0;
  int window = 0;
  Element element = Element::kBf16;  // rounding of out
  // Where KV is bf16. Vectors multiply it in f32; for dot instructions and for AMX queries and
  // weights are rounded to bf16 too. One choice for all calls on a sequence, or its rows' bits
  // depend on which call made them.
  MatmulUnit unit = MatmulUnit::kBest;
};
struct AttentionRows {
  std::span<const float> q;
  std::span<float> out;
};
void attention(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
               const AttentionOptions& options, const AttentionRows& rows);

}  // namespace protean::cpu
