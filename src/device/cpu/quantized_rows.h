#pragma once

#include <cstdint>
#include <span>

namespace protean::cpu {

// Rows of a weight matrix as integers, the form in which quantisers and checkpoints hand them over
// and kernels pack them. The weight of input i in row r is
//   scales[r][i / group] * codes[r][i] + offsets[r][i / group]
// with codes below 2^bits. Symmetric w8 has codes about 128 and offsets of -128 scales. A view:
// owns nothing.
struct QuantizedRows {
  int bits = 8;             // 8, 4 or 3
  int group = 128;          // inputs that share a scale: 32, 64 or 128; the last may be shorter
  std::int64_t inputs = 0;  // columns
  std::span<const std::uint8_t> codes;  // [rows][inputs]
  std::span<const float> scales;        // [rows][ceil(inputs / group)]
  std::span<const float> offsets;       // as scales

  std::int64_t groups() const { return (inputs + group - 1) / group; }
};

// Activations of 7 bits come as 1 to 127 (int8_rows.h), and their products with signed codes of w8
// are added in 16 bits, four at a time: inputs 0, 1, 4 and 5 of each eight, and the others. So what
// codes of one sign among four add up to is bounded. A sixth of the groups of the built-in model
// would be beyond, by an eighth, and their scales are so much larger.
constexpr int kMostCodeSum = 258;
static_assert(kMostCodeSum * 127 <= 32767);

// The largest such sum in a group of one output.
int largest_code_sum(std::span<const std::uint8_t> codes);

// A larger scale, which f16 holds, such that codes that stand for the same are small enough.
float scale_for_code_sum(float scale, int sum);

}  // namespace protean::cpu
