#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// How keys and values are stored. kInt8 has a bf16 scale for the key and one for the value of each
// token and head: the smallest with which the largest value of the row is at most 127 steps.
enum class KvElement : std::uint8_t { kF32, kBf16, kInt8 };

constexpr std::int64_t kv_element_bytes(KvElement element) {
  return element == KvElement::kF32 ? 4 : element == KvElement::kBf16 ? 2 : 1;
}
constexpr std::int64_t kv_scale_bytes(KvElement element) {
  return element == KvElement::kInt8 ? 2 : 0;
}

// One layer of a paged KV store. A block of `block_tokens` tokens has, in each layer, one slot for
// each KV head: [K, V][token][head_dim], then [K, V][token] scales if the element has any. This is
// the header-centric layout of AMOEBA (section 3.1): any run of heads is contiguous. Block b of the
// layer begins at base + b * block_stride_bytes.
struct KvLayer {
  std::byte* base = nullptr;
  std::int64_t block_stride_bytes = 0;
  KvElement element = KvElement::kBf16;
  int kv_heads = 0;
  int head_dim = 0;  // a multiple of 8, at most 512
  int block_tokens = 16;

  std::int64_t row_bytes() const { return head_dim * kv_element_bytes(element); }
  std::int64_t slot_bytes() const {
    return 2 * block_tokens * (row_bytes() + kv_scale_bytes(element));
  }
};

// The addresses of the key and the value of one token and head.
struct KvRow {
  std::byte* key = nullptr;
  std::byte* value = nullptr;
  std::byte* key_scale = nullptr;  // valid only if the element has scales
  std::byte* value_scale = nullptr;
};
inline KvRow kv_row(const KvLayer& layer, BlockId block, int kv_head, int token) {
  const std::int64_t half_bytes = layer.row_bytes() * layer.block_tokens;
  const std::int64_t scale_bytes = kv_scale_bytes(layer.element);
  std::byte* const slot =
      layer.base + block * layer.block_stride_bytes + kv_head * layer.slot_bytes();
  std::byte* const key = slot + token * layer.row_bytes();
  std::byte* const key_scale = slot + 2 * half_bytes + token * scale_bytes;
  return {key, key + half_bytes, key_scale, key_scale + layer.block_tokens * scale_bytes};
}

// Consecutive tokens of one sequence in a batch. Rows [first_row, first_row + rows) have the
// positions first_position, first_position + 1, ... `blocks` is the whole block table of the
// sequence.
struct AttentionSlice {
  int first_row = 0;
  int rows = 0;
  int first_position = 0;
  std::span<const BlockId> blocks;
};

// check_layer() and check_slices() stop the program if a layer, or a slice of a batch of `rows`, is
// invalid.
void check_layer(const KvLayer& layer);
void check_slices(const KvLayer& layer, std::span<const AttentionSlice> slices, std::int64_t rows);

// Stores k and v ([rows][kv_heads * head_dim], f32) at their positions, rounded to nearest. A kInt8
// row with an infinity or a NaN is read back as NaNs.
void store_kv(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
              std::span<const float> k, std::span<const float> v);

}  // namespace protean::cpu
