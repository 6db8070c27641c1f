#include "quant/round_to_nearest.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "device/cpu/f16.h"
#include "device/cpu/quantized_rows.h"

namespace protean {
namespace {

// Rounds the scale to f16 upwards, so that the largest weight stays on the grid.
float stored_scale(float scale) {
  return cpu::float_from_f16(cpu::f16_not_below(scale));
}

}  // namespace

GroupGrid fit_grid(float low, float high, const QuantFormat& format) {
  const auto steps = static_cast<float>(format.codes() - 1);
  if (format.symmetric) {
    const float largest = std::max(std::fabs(low), std::fabs(high));
    return {stored_scale(2.0F * largest / steps), format.codes() / 2};
  }
  const float below = std::min(low, 0.0F);
  const float scale = stored_scale((std::max(high, 0.0F) - below) / steps);
  if (scale == 0.0F) {
    return {scale, format.codes() / 2};
  }
  const auto zero = static_cast<int>(std::lround(-below / scale));
  return {scale, std::min(zero, format.codes() - 1)};
}

GroupGrid fit_grid(std::span<const float> weights, const QuantFormat& format) {
  float low = 0.0F;
  float high = 0.0F;
  for (const float weight : weights) {
    low = weight < low ? weight : low;
    high = weight > high ? weight : high;
  }
  return fit_grid(low, high, format);
}

bool can_quantize(std::span<const float> weights) {
  return std::all_of(weights.begin(), weights.end(),
                     [](float weight) { return std::fabs(weight) <= kLargestWeight; });
}

QuantizedMatrix round_to_nearest(std::span<const float> weights, std::int64_t inputs,
                                 const QuantFormat& format) {
  check(inputs > 0 && static_cast<std::int64_t>(weights.size()) % inputs == 0,
        "weights are whole rows");
  const std::int64_t rows = static_cast<std::int64_t>(weights.size()) / inputs;
  QuantizedMatrix matrix = QuantizedMatrix::sized(format, rows, inputs);
  std::size_t at = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t first = 0; first < inputs; first += format.group, ++at) {
      const std::int64_t begin = row * inputs + first;
      const auto group = weights.subspan(
          static_cast<std::size_t>(begin),
          static_cast<std::size_t>(std::min<std::int64_t>(format.group, inputs - first)));
      const auto codes =
          std::span(matrix.codes).subspan(static_cast<std::size_t>(begin), group.size());
      GroupGrid grid = fit_grid(group, format);
      const auto round = [&] {
        std::transform(group.begin(), group.end(), codes.begin(),
                       [&](float weight) { return nearest_code(weight, grid, format); });
      };
      round();
      if (format.bits == 8 && format.symmetric) {
        for (int sum = 0; (sum = cpu::largest_code_sum(codes)) > cpu::kMostCodeSum;) {
          grid.scale = cpu::scale_for_code_sum(grid.scale, sum);
          round();
        }
      }
      matrix.scales[at] = grid.scale;
      matrix.offsets[at] = grid.offset();
    }
  }
  return matrix;
}

}  // namespace protean
