#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "device/cpu/team.h"

namespace protean::cpu {

enum class Element : std::uint8_t { kF32, kBf16 };

constexpr int element_bytes(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

// A weight matrix of `outputs` rows by `inputs` columns (y = W x), stored for the kernel that reads
// it: panels of 32 outputs, each [inputs][32], outputs padded with zeros to whole panels. Does not
// own its memory.
struct PackedMatrix {
  static constexpr int kPanel = 32;
  Element element = Element::kBf16;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::byte* data = nullptr;  // 64-byte aligned

  std::int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  std::int64_t bytes() const { return panels() * kPanel * inputs * element_bytes(element); }
};

// Writes one panel from row-major f32 rows [row_count <= 32][inputs], rounding to nearest even; the
// rest of the panel becomes zeros.
void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const float* rows, int row_count);

// out[m][outputs] = x[m][inputs] * W^T (+ bias) (+ out, when accumulate). For bf16 weights x must
// already be rounded to bf16 (round_to), so products are exact and sums are f32. A row of out is
// the same bits whatever m, the thread count and the row's place in the batch: each element is one
// chain of multiply-adds from zero over inputs in ascending order, plus bias, plus out.
struct MatmulOptions {
  const float* bias = nullptr;  // [outputs]
  bool accumulate = false;
};
void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options = {});

// out[i] = row ids[i] of the table, as f32. The output projection of a tied model is read this way.
void gather_rows(const PackedMatrix& table, std::span<const TokenId> ids, std::span<float> out);

}  // namespace protean::cpu
