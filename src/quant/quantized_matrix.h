#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cpu/quantized_rows.h"

namespace protean {

// How a matrix is quantised. Symmetric codes are around 2^(bits-1). Other formats have an integer
// zero point in each group, which suits weights that are mostly of one sign.
struct QuantFormat {
  int bits = 4;     // 8, 4 or 3
  int group = 128;  // consecutive inputs that share a scale: 32, 64 or 128
  bool symmetric = false;

  int codes() const { return 1 << bits; }
};

// Fails if the bits or the group are not supported.
Status validate(const QuantFormat& format);

// A quantised matrix that owns its memory. Scales are exact in f16 and offsets are integer
// multiples of them, so that kernels and file formats can store them as f16 and integers without
// loss.
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

// Writes rows [row, row + count) as f32 to out [count][inputs].
void dequantize_rows(const cpu::QuantizedRows& matrix, std::int64_t row, std::int64_t count,
                     float* out);

}  // namespace protean
