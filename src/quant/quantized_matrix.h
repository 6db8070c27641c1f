#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cpu/quantized_rows.h"

namespace protean {

// The format of a quantised matrix. Symmetric codes are centred at 2^(bits-1). Other formats have
// an integer zero point for each group, which loses less if a group's weights are not centred at 0.
struct QuantFormat {
  int bits = 4;     // 8, 4 or 3
  int group = 128;  // consecutive inputs that share a scale: 32, 64 or 128
  bool symmetric = false;

  int codes() const { return 1 << bits; }
};

// Fails and names the allowed values unless the fields have one of those above.
Status validate(const QuantFormat& format);

// A quantised matrix with its memory. Scales are exact in f16 and offsets are whole multiples of
// them, so kernels and file formats store them as f16 and integers without loss.
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

// Dequantises rows [row, row + count) of the view into out [count][inputs].
void dequantize_rows(const cpu::QuantizedRows& matrix, std::int64_t row, std::int64_t count,
                     float* out);

}  // namespace protean
