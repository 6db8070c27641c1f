#pragma once

#include <span>

#include "device/cpu/kv_layer.h"
#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// Computes out[row] = softmax(cap(scale * q k^T)) v over the positions up to the row's own and,
// if window > 0, above its own - window. q and out are [rows][heads * head_dim]. KV is read in
// ascending tiles of 64 positions, whose sums are added within segments of 256 positions, which are
// then merged in ascending order. Tiles and segments begin at multiples of their size. So the bits
// of a row do not depend on batch, chunking, threads or block size, nor on whether segments were
// computed separately to use all threads. Positions that a row may not see do not affect it, and
// blocks that no row of the call sees are not read.
struct AttentionOptions {
  int heads = 0;
  int window = 0;
  Element element = Element::kBf16;  // rounding of out
  float scale = 0.0F;                // factor of the scores; 0 means 1 / sqrt(head_dim)
  float score_cap = 0.0F;            // cap(s) = score_cap * tanh(s / score_cap); 0 means cap(s) = s
  // Vectors multiply in f32. With bf16 KV, dot instructions and AMX round queries and weights to
  // bf16. With int8 KV, AMX rounds queries to integers of two bytes and weights to bf16, and dot
  // instructions are not used. All calls for a sequence must use the same instruction set, or the
  // bits of its rows depend on the call.
  MatmulIsa isa = MatmulIsa::kBest;
};
struct AttentionRows {
  std::span<const float> q;
  std::span<float> out;
};
void attention(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
               const AttentionOptions& options, const AttentionRows& rows);

}  // namespace protean::cpu
