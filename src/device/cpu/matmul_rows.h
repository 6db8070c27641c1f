#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/matmul_unit.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/row_blocks.h"
#include "device/cpu/team.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// Activations for weights without int8_inputs(): laid out once, for a product's parts and all
// matrices that read them. A view: the memory is the caller's.
struct MatmulRows {
  const float* x = nullptr;  // [rows][inputs]
  std::int64_t inputs = 0;
  MatmulUnit unit = MatmulUnit::kVector;  // not kBest
  RowBlocks blocks;
  // Two bf16 in each, [stored_rows()][row_words()] in all, padded with zeros. For vectors
  // [word][row] in each block. For AMX [tile of rows][step][row][64 bytes] in each chunk of inputs:
  // what is multiplied together then lies together, where tiles a power of two apart would fight
  // for the same lines of L2. Null where x itself is read.
  const std::uint32_t* words = nullptr;
  // For AMX over weights with offsets: sums of `group` inputs each, [groups][rows].
  const float* group_sums = nullptr;
  int group = 0;

  std::int64_t row_words() const {
    constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
    return (inputs + kBlock - 1) / kBlock * kBlock / 2;
  }

  static constexpr std::int64_t kTileChunk = 512;  // inputs
  // For AMX, in bytes: where a row's tile has the step with this input, and from there to the same
  // of the next tile. The next steps of its chunk follow.
  std::int64_t tile_offset(std::int64_t row, std::int64_t input) const {
    const std::int64_t first = input / kTileChunk * kTileChunk;
    return first * blocks.stored_rows() * 2 + row / kTileRows16 * tile_stride(input) +
           (input - first) / kTileInputs * kTileRows16 * kTileBytes;
  }
  std::int64_t tile_stride(std::int64_t input) const {
    const std::int64_t first = input / kTileChunk * kTileChunk;
    return std::min(kTileChunk, row_words() * 2 - first) * kTileRows16 * 2;
  }
};

// Rows [rows][weights.inputs], which must already be rounded to bf16 (round_to) unless the weights
// are f32, for these weights and others of their kind and inputs. The memory is of at least
// arranged_rows_bytes; products are faster where it begins a cache line.
MatmulRows arrange_rows(Team& team, std::span<const float> x, const PackedMatrix& weights,
                        std::span<std::byte> memory, MatmulUnit unit = MatmulUnit::kBest);

}  // namespace protean::cpu
