#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/matmul_isa.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/row_blocks.h"
#include "device/cpu/row_source.h"
#include "device/cpu/team.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// Activations for weights without int8_inputs(), arranged once for all tasks and all matrices that
// are multiplied with them. Does not own its memory.
struct MatmulRows {
  // [rows][inputs]. Null if there are words only, which gate_rows() wrote.
  const float* x = nullptr;
  std::int64_t inputs = 0;
  MatmulIsa isa = MatmulIsa::kVector;  // not kBest
  RowBlocks blocks;
  // stored_rows() * row_words() words of two bf16, padded with zeros. Each block is [word][row] for
  // vectors. For AMX each chunk of inputs is [tile of rows][step][row][64 bytes]: tiles that are
  // used together are adjacent, since tiles a power of two apart would compete for the same lines
  // of L2. Null if the kernels read x itself.
  std::uint32_t* words = nullptr;
  // Sums of the inputs of each group, [groups][rows]. Only for AMX and weights with offsets.
  float* group_sums = nullptr;
  int group = 0;  // of group_sums, else 0

  std::int64_t row_words() const {
    constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
    return (inputs + kBlock - 1) / kBlock * kBlock / 2;
  }

  static constexpr std::int64_t kTileChunk = 512;  // inputs
  // For AMX. tile_offset() returns the byte offset of the step that has `input` in the tile that
  // has `row`; the next steps of its chunk follow. tile_stride() returns the bytes from there to
  // the same step of the next tile.
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

// Arranges rows [rows][weights.inputs] for these weights and others of the same kind and inputs.
// Unless the weights are f32, the rows must be rounded to bf16 (round_to). `memory` has at least
// arranged_rows_bytes(); products are faster if it begins at a cache line.
MatmulRows arrange_rows(Team& team, std::span<const float> x, const PackedMatrix& weights,
                        std::span<std::byte> memory, MatmulIsa isa = MatmulIsa::kBest);

// Lays out `count` rows in `memory`, without values. gate_rows() then writes them task by task,
// rounded to bf16, if they have words.
MatmulRows place_rows(std::int64_t count, const PackedMatrix& weights, std::span<std::byte> memory,
                      MatmulIsa isa = MatmulIsa::kBest);
void gate_rows(const GatedOutputs& outputs, const MatmulRows& to);

}  // namespace protean::cpu
