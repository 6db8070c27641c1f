#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "device/cpu/quantized_rows.h"

namespace protean::cpu {

// How activations are rounded.
enum class Element : std::uint8_t { kF32, kBf16 };

constexpr int element_bytes(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

// kTwoOfFour is bf16 of which at least two of four consecutive inputs of an output are 0.
enum class WeightKind : std::uint8_t { kF32, kBf16, kTwoOfFour, kW8, kW4, kW3 };

// How a weight matrix is stored. In quantised kinds, `group` consecutive inputs of an output share
// a scale and, unless symmetric, an offset.
struct WeightFormat {
  WeightKind kind = WeightKind::kBf16;
  int group = 128;        // 32, 64 or 128; quantised kinds only
  bool symmetric = true;  // no offsets are stored; quantised kinds only
  // Width of the activations: 16 means bf16 or f32; 8 (w8 and w4) and 7 (w8) mean integers
  // (int8_rows.h). The stored bytes do not depend on it.
  int input_bits = 16;

  bool operator==(const WeightFormat&) const = default;

  bool quantized() const { return kind >= WeightKind::kW8; }
  bool int8_inputs() const { return input_bits < 16; }
  int bits() const;
  // The rounding of activations before they are multiplied with these weights. Integers are made
  // from f32.
  Element inputs() const {
    return kind == WeightKind::kF32 || int8_inputs() ? Element::kF32 : Element::kBf16;
  }
};

// A weight matrix of `outputs` rows by `inputs` columns (y = W x), in one layout for all kernels:
// panels of 32 outputs, with both dimensions padded with zeros to multiples of 32. Does not own its
// memory. A panel is
//   f32   [inputs][32]
//   bf16  [inputs / 2][32][2], which is the layout of AMX tiles
//   2:4   for each 32 inputs [32] words of positions, then [8][32] words of two bf16 of 4 inputs:
//         bits 2f and 2f + 1 of a position word say which of inputs 4f to 4f + 3 the low bf16 is
//         of, bits 16 + 2f and 17 + 2f which the high one is of. The high one is added first: it is
//         of inputs 0, 1 before 2, 3, and of the odd input before the even one.
//   w8, w4, w3: for each group 32 scales, 32 offsets unless symmetric (both f16), then
//     w8  [inputs / 4][32] words of 4 signed codes, the first input in the lowest bits
//     w4  [inputs / 8][32] words of 8 signed codes
//     w3  [inputs / 32][3][32] words: 32 signed codes in 96 bits, the first input lowest
// where a weight is scale * (code - 2^(bits-1)) + offset: the offset is the weight of the middle
// code. The sums of w8 codes are limited as described in quantized_rows.h.
struct PackedMatrix {
  static constexpr int kPanel = 32;       // outputs
  static constexpr int kInputBlock = 32;  // inputs

  WeightFormat format;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::byte* data = nullptr;  // 64-byte aligned

  std::int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  std::int64_t padded_inputs() const {
    return (inputs + kInputBlock - 1) / kInputBlock * kInputBlock;
  }
  std::int64_t scale_bytes() const;  // scales and offsets of one group of a panel
  std::int64_t group_bytes() const;  // scales, offsets and codes of one group of a panel
  std::int64_t panel_bytes() const;
  std::int64_t bytes() const { return panels() * panel_bytes(); }
};

// Writes one panel of an f32, bf16 or 2:4 matrix from row-major rows [row_count <= 32][inputs],
// rounded to nearest even. 2:4 keeps the two largest of four inputs, the first ones of equals.
// Fills the rest of the panel with zeros.
void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const float* rows, int row_count);

// Writes one panel of a quantised matrix from at most 32 rows with the matrix's bits, group and
// symmetry. Groups of w8 codes whose sums exceed the limit are rounded again with a larger scale.
void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const QuantizedRows& rows);

// Computes out[i] = row ids[i] of the embedding matrix, as f32. A tied model reads its LM head so.
void gather_rows(const PackedMatrix& table, std::span<const TokenId> ids, std::span<float> out);

}  // namespace protean::cpu
