#include "quant/quantized_matrix.h"

#include <algorithm>

namespace protean {

Status validate(const QuantFormat& format) {
  if (format.bits != 8 && format.bits != 4 && format.bits != 3) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} bits per weight are not supported: use 8, 4 or 3", format.bits);
  }
  if (format.group != 32 && format.group != 64 && format.group != 128) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a group of {} weights is not supported: use 32, 64 or 128", format.group);
  }
  return {};
}

QuantizedMatrix QuantizedMatrix::sized(const QuantFormat& format, std::int64_t rows,
                                       std::int64_t inputs) {
  check(validate(format).ok() && rows >= 0 && inputs > 0, "a quantised matrix has legal sizes");
  QuantizedMatrix matrix{.format = format, .rows = rows, .inputs = inputs};
  const auto scales = static_cast<std::size_t>(rows * matrix.groups());
  matrix.codes.resize(static_cast<std::size_t>(rows * inputs));
  matrix.scales.resize(scales);
  matrix.offsets.resize(scales);
  return matrix;
}

cpu::QuantizedRows QuantizedMatrix::view() const {
  return {.bits = format.bits,
          .group = format.group,
          .inputs = inputs,
          .codes = codes,
          .scales = scales,
          .offsets = offsets};
}

void dequantize_rows(const cpu::QuantizedRows& matrix, std::int64_t row, std::int64_t count,
                     float* out) {
  for (std::int64_t r = row; r < row + count; ++r, out += matrix.inputs) {
    const std::uint8_t* codes = matrix.codes.data() + r * matrix.inputs;
    for (std::int64_t g = 0; g < matrix.groups(); ++g) {
      const auto at = static_cast<std::size_t>(r * matrix.groups() + g);
      const float scale = matrix.scales[at];
      const float offset = matrix.offsets[at];
      const std::int64_t end = std::min(matrix.inputs, (g + 1) * matrix.group);
      for (std::int64_t i = g * matrix.group; i < end; ++i) {
        out[i] = scale * static_cast<float>(codes[i]) + offset;
      }
    }
  }
}

}  // namespace protean
