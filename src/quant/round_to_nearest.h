#pragma once

#include <cstdint>
#include <span>

#include "quant/quantized_matrix.h"

namespace protean {

// The scale and zero point of a group. A code c has the value scale * (c - zero).
struct GroupGrid {
  float scale = 0.0F;  // exact in f16; 0 only if every weight is 0
  int zero = 0;        // in [0, 2^bits)

  float offset() const { return -scale * static_cast<float>(zero); }
};

// Returns the finest grid that represents [low, high] and 0 within half a scale. The bounds must be
// finite.
GroupGrid fit_grid(float low, float high, const QuantFormat& format);

// Returns the grid of a group's smallest and largest weight.
GroupGrid fit_grid(std::span<const float> weights, const QuantFormat& format);

// Returns the code nearest to a weight, or the end of the grid for a weight beyond it. Uses only
// comparisons and a truncation, which compilers vectorise.
inline std::uint8_t nearest_code(float weight, const GroupGrid& grid, const QuantFormat& format) {
  const float zero = static_cast<float>(grid.zero) + 0.5F;
  const float at = grid.scale == 0.0F ? zero : weight / grid.scale + zero;
  const float top = static_cast<float>(format.codes() - 1);
  const float above = at < 0.0F ? 0.0F : at;
  return static_cast<std::uint8_t>(static_cast<int>(above > top ? top : above));
}

// The largest |weight| whose group has a scale in f16 in every format. Callers must refuse larger
// weights, infinities and NaNs.
constexpr float kLargestWeight = 65504.0F;
bool can_quantize(std::span<const float> weights);

// Rounds row-major weights [rows][inputs] to the nearest codes of their groups' grids. No error
// exceeds half the group's scale. Symmetric 8-bit groups may get a larger scale than necessary,
// which bounds the sums of their codes (device/cpu/quantized_rows.h). Pure. Rows are independent.
QuantizedMatrix round_to_nearest(std::span<const float> weights, std::int64_t inputs,
                                 const QuantFormat& format);

}  // namespace protean
