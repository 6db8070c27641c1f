#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/matmul_unit.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/row_blocks.h"
#include "device/cpu/row_source.h"
#include "device/cpu/team.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

constexpr std::uint32_t kSevensMiddle = 64;       // what bytes of 7 bits stand above their integers
constexpr std::uint32_t kEachByte = 0x01010101U;  // times a byte: a word of four

// Activations as integers of 8 bits, or of 7 in as many, for weights that are multiplied with such
// (WeightFormat). In each row every group of inputs that shares a weight scale has one of its own,
// s = max |x| / 127, of 7 bits 63, and x becomes the whole number nearest to x times the inverse of
// s, ties to even. What is not finite makes s NaN, and the integers zeros. A view: the memory is
// the caller's.
struct Int8Rows {
  std::int64_t inputs = 0;
  WeightFormat format;                    // of the weights that they are for
  MatmulUnit unit = MatmulUnit::kVector;  // they are arranged for it; not kBest
  RowBlocks blocks;
  // [stored_rows()][row_words()] in all, padded with zeros. For vectors [word][row] in each block,
  // for AMX [step][row][64 bytes], where the last step of a group may be half full.
  std::uint32_t* words = nullptr;
  // A group's lie side by side, as a tile reads them and as one part of a product writes them.
  float* scales = nullptr;         // [groups()][rows]
  std::int32_t* totals = nullptr;  // [groups()][rows], sums of the integers

  // Words as packed weights are had: of w4 four inputs of 8 bits, of each eight the even ones
  // before the odd ones; of w8 two of 16 bits, of each four the even ones before the odd ones, or,
  // for dot instructions, for AMX and if they have 7 bits, four in order; of 7 bits for vectors
  // they are kSevensMiddle above themselves, without a sign.
  int word_inputs() const { return format.kind == WeightKind::kW4 || fours() ? 4 : 2; }
  bool fours() const { return unit != MatmulUnit::kVector || format.input_bits == 7; }
  std::uint32_t middle() const {
    return unit == MatmulUnit::kVector && format.input_bits == 7 ? kSevensMiddle : 0;
  }
  int largest_code() const { return (1 << (format.input_bits - 1)) - 1; }
  std::int64_t row_words() const {
    constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
    return blocks.tiled ? stored_steps() * kTileBytes / 4
                        : (inputs + kBlock - 1) / kBlock * kBlock / word_inputs();
  }
  std::int64_t groups() const { return (inputs + format.group - 1) / format.group; }
  // Of one group, whole blocks of the matrix.
  std::int64_t group_inputs(std::int64_t group) const {
    constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
    const std::int64_t count = std::min<std::int64_t>(format.group, inputs - group * format.group);
    return (count + kBlock - 1) / kBlock * kBlock;
  }
  // What tiles take of a row at once; the last group may have fewer.
  std::int64_t group_steps() const { return (format.group + kTileInt8s - 1) / kTileInt8s; }
  std::int64_t steps() const {
    const std::int64_t inputs_of_step = std::min(format.group, kTileInt8s);
    return (inputs + inputs_of_step - 1) / inputs_of_step;
  }
  // From a tile of rows to the next, where there is room for one more: tiles a power of two apart
  // would fight for the same lines of L2.
  std::int64_t stored_steps() const { return format.group < kTileInt8s ? steps() : steps() | 1; }
};

// Rows [rows][weights.inputs], which are made on the way where they are not there yet, into memory
// of at least arranged_rows_bytes, apart from what is read; products are faster where it begins a
// cache line.
// The best unit depends on how many rows there are: few wait for weights, which vectors read once.
Int8Rows quantize_rows(Team& team, const RowSource& source, const PackedMatrix& weights,
                       std::span<std::byte> memory, MatmulUnit unit = MatmulUnit::kBest);

// The same, of so many rows that are still to be written, each part by gate_rows.
Int8Rows place_int8_rows(std::int64_t count, const PackedMatrix& weights,
                         std::span<std::byte> memory, MatmulUnit unit = MatmulUnit::kBest);
void gate_rows(const GatedPart& part, const Int8Rows& to);

}  // namespace protean::cpu
