#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cpu/quantized_rows.h"

namespace protean {

// How a matrix becomes integers. Symmetric codes lie about 2^(bits-1); the others have a whole zero
// point per group, so that weights which lean to one side lose less.
struct QuantFormat {
  int bits = 4;     // 8, 4 or 3
  int group = 128;  // consecutive inputs that share a scale: 32, 64 or 128
  bool symmetric = false;

  int codes() const { return 1 << bits; }
};

// Fails, saying what is possible, unless the sizes are among those above.
Status validate(const QuantFormat& format);

// Rows of integers with the memory they are in. Scales are exact in f16 and offsets are whole
// multiples of them, so kernels and file formats lose nothing by storing them as f16 and integers.
struct QuantizedMatrix {
  QuantFormat format;
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::vector<float> offsets;

  static QuantizedMatrix sized(const QuantFormat& format, std::int64_t rows, std::int64_t inputs);

  std::int64_t groups() const { return (inputs + format.group - 1) / format.group; }
  cpu::QuantizedRows view() const;
};

// What the codes stand for, as f32: rows [row, row + count) of the view into out [count][inputs].
void dequantize_rows(const cpu::QuantizedRows& matrix, std::int64_t row, std::int64_t count,
                     float* out);

}  // namespace protean
