#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// One layer of a paged KV store. A block of `block_tokens` tokens holds, per layer, its slots one
// after another: [kv_head][K, V][token][head_dim] (AMOEBA section 3.1, header-centric), so that any
// run of heads is one contiguous piece. Block b of this layer starts at base + b * block_stride.
struct KvLayer {
  std::byte* base = nullptr;
  std::int64_t block_stride_bytes = 0;
  Element element = Element::kBf16;
  int kv_heads = 0;
  int head_dim = 0;  // a multiple of 8, at most 512
  int block_tokens = 16;
};

// Consecutive tokens of one sequence within the batch: rows [first_row, first_row + rows) stand at
// positions first_position, first_position + 1, ...; blocks is the sequence's whole block table.
struct AttentionSlice {
  int first_row = 0;
  int rows = 0;
  int first_position = 0;
  std::span<const BlockId> blocks;
};

// Stores k and v ([rows][kv_heads * head_dim], f32) at their positions, rounded to layer.element.
void store_kv(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
              std::span<const float> k, std::span<const float> v);

// out[row] = softmax(q k^T / sqrt(head_dim)) v over positions <= the row's own and, if window > 0,
// > its own - window. q and out are [rows][heads * head_dim]. KV is read in ascending tiles of 64
// positions that begin at multiples of 64, so a row's bits do not depend on batch, chunking,
// threads or block size. What lies where a row may not look has no effect on it, and blocks that no
// row of the call sees are not read.
struct AttentionOptions {
  int heads = 0;
  int window = 0;
  Element element = Element::kBf16;  // rounding of out
};
struct AttentionRows {
  std::span<const float> q;
  std::span<float> out;
};
void attention(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
               const AttentionOptions& options, const AttentionRows& rows);

}  // namespace protean::cpu
