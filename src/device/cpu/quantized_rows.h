#pragma once

#include <cstdint>
#include <span>

namespace protean::cpu {

// Quantised rows of a weight matrix, as quantisers and checkpoints provide them. The weight of
// input i in row r is
//   scales[r][i / group] * codes[r][i] + offsets[r][i / group]
// with codes below 2^bits. In symmetric w8 the offset is -128 times the scale. Owns no memory.
struct QuantizedRows {
  int bits = 8;     // 8, 4 or 3
  int group = 128;  // inputs that share a scale: 32, 64 or 128; the last group may be shorter
  std::int64_t inputs = 0;              // columns
  std::span<const std::uint8_t> codes;  // [rows][inputs]
  std::span<const float> scales;        // [rows][ceil(inputs / group)]
  std::span<const float> offsets;       // laid out as `scales` is

  std::int64_t groups() const { return (inputs + group - 1) / group; }
};

// The largest allowed sum of codes of one sign among four. 7-bit activations are stored as 1 to 127
// (int8_rows.h), and four of their products with signed w8 codes are added in 16 bits: those of
// inputs 0, 1, 4 and 5 of each eight, and those of the other four. In the built-in model a sixth of
// the groups exceed this limit, typically by an eighth; packing makes their scales larger by as
// much.
constexpr int kMostCodeSum = 258;
static_assert(kMostCodeSum * 127 <= 32767);

// Returns the largest such sum in a group of one output.
int largest_code_sum(std::span<const std::uint8_t> codes);

// Returns a larger scale, representable in f16, with which the codes of the same weights are within
// the limit.
float scale_for_code_sum(float scale, int sum);

}  // namespace protean::cpu
