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

constexpr std::uint32_t kSevensMiddle = 64;       // 7-bit integers are stored with this added
constexpr std::uint32_t kEachByte = 0x01010101U;  // times a byte: a word of four such bytes

// Activations as integers of 8 or 7 bits, for weights with int8_inputs(). In each row, every group
// of inputs has a scale s = max |x| / 127 (63 for 7 bits), and x becomes the integer nearest to x *
// (1/s), ties to even. If an input is not finite, s is NaN and the integers are zeros. Does not own
// its memory.
struct Int8Rows {
  std::int64_t inputs = 0;
  WeightFormat format;  // the format of the weights
  MatmulIsa isa =
      MatmulIsa::kVector;  // the instruction set that the rows are arranged for; not kBest
  RowBlocks blocks;
  // stored_rows() * row_words() words, padded with zeros. Each block is [word][row] for vectors and
  // [step][row][64 bytes] for AMX, where the last step of a group may be half full.
  std::uint32_t* words = nullptr;
  // The scales and totals of one group are adjacent, since a tile reads them together.
  float* scales = nullptr;         // [groups()][rows]
  std::int32_t* totals = nullptr;  // [groups()][rows], sums of the integers

  // The order of inputs in words is the one in which kernels unpack weights:
  //   w4         4 inputs of 8 bits; of each 8 inputs first the even, then the odd ones
  //   w8         2 inputs of 16 bits; of each 4 inputs first the even, then the odd ones
  //   w8 with dot instructions, AMX or 7 bits: 4 inputs of 8 bits in order
  // 7-bit inputs for vectors are unsigned, with kSevensMiddle added.
  int word_inputs() const { return format.kind == WeightKind::kW4 || fours() ? 4 : 2; }
  bool fours() const { return isa != MatmulIsa::kVector || format.input_bits == 7; }
  std::uint32_t middle() const {
    return isa == MatmulIsa::kVector && format.input_bits == 7 ? kSevensMiddle : 0;
  }
  int largest_code() const { return (1 << (format.input_bits - 1)) - 1; }
  std::int64_t row_words() const {
    constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
    return blocks.tiled ? stored_steps() * kTileBytes / 4
                        : (inputs + kBlock - 1) / kBlock * kBlock / word_inputs();
  }
  std::int64_t groups() const { return (inputs + format.group - 1) / format.group; }
  // Returns the inputs of a group, rounded up to whole blocks of the matrix.
  std::int64_t group_inputs(std::int64_t group) const {
    constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
    const std::int64_t count = std::min<std::int64_t>(format.group, inputs - group * format.group);
    return (count + kBlock - 1) / kBlock * kBlock;
  }
  // Returns the steps of a group, which are the inputs that tiles read at once. The last group may
  // have fewer.
  std::int64_t group_steps() const { return (format.group + kTileInt8s - 1) / kTileInt8s; }
  std::int64_t steps() const {
    const std::int64_t inputs_of_step = std::min(format.group, kTileInt8s);
    return (inputs + inputs_of_step - 1) / inputs_of_step;
  }
  // From a tile of rows to the next, where there is room for one more: tiles a power of two apart
  // would fight for the same lines of L2.
  std::int64_t stored_steps() const { return format.group < kTileInt8s ? steps() : steps() | 1; }
};

// Quantises rows [rows][weights.inputs], after the norm of `source` if there is one. `memory` has
// at least arranged_rows_bytes() and does not overlap the source; products are faster if it begins
// at a cache line. kBest chooses vectors for few rows, which are limited by reading the weights.
Int8Rows quantize_rows(Team& team, const RowSource& source, const PackedMatrix& weights,
                       std::span<std::byte> memory, MatmulIsa isa = MatmulIsa::kBest);

// Lays out `count` rows in `memory`, without values. gate_rows() then writes them task by task.
Int8Rows place_int8_rows(std::int64_t count, const PackedMatrix& weights,
                         std::span<std::byte> memory, MatmulIsa isa = MatmulIsa::kBest);
void gate_rows(const GatedOutputs& outputs, const Int8Rows& to);

}  // namespace protean::cpu
