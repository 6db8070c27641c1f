#pragma once

#include <cstdint>
#include <span>

#include "quant/quantized_matrix.h"

namespace protean {

// One group's scale and zero point: a code c stands for scale * (c - zero).
struct GroupGrid {
  float scale = 0.0F;  // exact in f16; 0 only when every weight is 0
  int zero = 0;        // in [0, 2^bits)

  float offset() const { return -scale * static_cast<float>(zero); }
};

// The finest grid that holds [low, high] and 0 within half a scale. The bounds are finite.
GroupGrid fit_grid(float low, float high, const QuantFormat& format);

// The grid of a group's smallest and largest weight.
GroupGrid fit_grid(std::span<const float> weights, const QuantFormat& format);

// The code nearest to a weight; beyond the grid, its end. Plain comparisons and a truncation, which
// compilers vectorise.
inline std::uint8_t nearest_code(float weight, const GroupGrid& grid, const QuantFormat& format) {
  const float zero = static_cast<float>(grid.zero) + 0.5F;
  const float at = grid.scale == 0.0F ? zero : weight / grid.scale + zero;
  const float top = static_cast<float>(format.codes() - 1);
  const float above = at < 0.0F ? 0.0F : at;
  return static_cast<std::uint8_t>(static_cast<int>(above > top ? top : above));
}

// Largest |weight| whose group has a scale in f16, whatever the format. Larger ones, infinities and
// NaNs must be refused before they come here.
constexpr float kLargestWeight = 65504.0F;
bool can_quantize(std::span<const float> weights);

// Row-major weights [rows][inputs], each to the nearest code of its group's grid: no error is
// larger than half the group's scale, which of symmetric codes of 8 bits may be longer than it must
// so that they add up to less (device/cpu/quantized_rows.h). Pure; rows are independent of each
// other.
QuantizedMatrix round_to_nearest(std::span<const float> weights, std::int64_t inputs,
                                 const QuantFormat& format);

}  // namespace protean
