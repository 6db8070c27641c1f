#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "device/cpu/quantized_rows.h"

namespace protean::cpu {

// What activations and KV are stored as.
enum class Element : std::uint8_t { kF32, kBf16 };

constexpr int element_bytes(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

enum class WeightKind : std::uint8_t { kF32, kBf16, kW8, kW4, kW3 };

// How a weight matrix is stored. Quantised kinds share a scale, and unless symmetric an offset,
// among `group` consecutive inputs of an output.
struct WeightFormat {
  WeightKind kind = WeightKind::kBf16;
  int group = 128;        // 32, 64 or 128; quantised kinds only
  bool symmetric = true;  // no offsets are stored; quantised kinds only
  // Of activations: bf16 or f32, or integers (int8_rows.h) of 8 bits for w8 and w4, or of 7 for w8.
  // What is stored is the same.
  int input_bits = 16;

  bool operator==(const WeightFormat&) const = default;

  bool quantized() const { return kind != WeightKind::kF32 && kind != WeightKind::kBf16; }
  bool int8_inputs() const { return input_bits < 16; }
  int bits() const;
  // To which activations must be rounded before they meet these weights; of f32 they make integers.
  Element inputs() const {
    return kind == WeightKind::kF32 || int8_inputs() ? Element::kF32 : Element::kBf16;
  }
};

// A weight matrix of `outputs` rows by `inputs` columns (y = W x), stored for the kernels that read
// it, the same bytes for all of them: panels of 32 outputs, both dimensions padded with zeros to
// whole multiples of 32. Does not own its memory. A panel is
//   f32   [inputs][32]
//   bf16  [inputs / 2][32][2], which is how AMX wants its tiles
//   w8, w4, w3: per group 32 scales, 32 offsets unless symmetric (both f16), then
//     w8  [inputs / 4][32] words of 4 signed codes, the first input lowest
//     w4  [inputs / 8][32] words of 8
//     w3  [inputs / 32][3][32] words: 32 signed codes in 96 bits, the first input lowest
// where a weight is scale * (code - 2^(bits-1)) + offset: offsets are of the middle code. Those
// of w8 add up to no more than quantized_rows.h says.
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
  std::int64_t scale_bytes() const;  // of one panel's group: its scales and offsets
  std::int64_t group_bytes() const;  // the same and its codes
  std::int64_t panel_bytes() const;
  std::int64_t bytes() const { return panels() * panel_bytes(); }
};

// Writes one panel from row-major f32 rows [row_count <= 32][inputs], rounding to nearest even; the
// rest of the panel becomes zeros. For f32 and bf16.
void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const float* rows, int row_count);

// The same for quantised kinds, from at most 32 rows of the matrix's bits, group and symmetry.
// Codes of w8 that add up to too much are rounded once more, to a longer step.
void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const QuantizedRows& rows);

// out[i] = row ids[i] of the table, as f32. The output projection of a tied model is read this way.
void gather_rows(const PackedMatrix& table, std::span<const TokenId> ids, std::span<float> out);

}  // namespace protean::cpu
