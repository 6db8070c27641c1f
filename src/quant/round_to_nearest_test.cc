#include "quant/round_to_nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "device/cpu/f16.h"
#include "device/cpu/quantized_rows.h"
#include "quant/dequantized_for_test.h"

namespace protean {
namespace {

std::vector<QuantFormat> every_format() {
  std::vector<QuantFormat> formats;
  for (const int bits : {8, 4, 3}) {
    for (const int group : {32, 64, 128}) {
      formats.push_back({bits, group, true});
      formats.push_back({bits, group, false});
    }
  }
  return formats;
}

// True if the error is within half a scale, up to the rounding of f32 division.
void expect_close(const std::vector<float>& weights, const QuantizedMatrix& matrix) {
  const std::vector<float> again = dequantized(matrix);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / matrix.inputs;
    const std::int64_t group = static_cast<std::int64_t>(i) % matrix.inputs / matrix.format.group;
    const float scale = matrix.scales[static_cast<std::size_t>(row * matrix.groups() + group)];
    ASSERT_LE(std::fabs(weights[i] - again[i]), scale * 0.50002F)
        << "weight " << i << " is " << weights[i] << ", " << matrix.format.bits << " bits, group "
        << matrix.format.group << (matrix.format.symmetric ? ", symmetric" : "");
    ASSERT_LT(int{matrix.codes[i]}, matrix.format.codes());
  }
}

// True if the codes of a group at its finest scale add up to more than is allowed.
bool adds_up_to_too_much(std::span<const float> group, const QuantFormat& format) {
  const GroupGrid grid = fit_grid(group, format);
  std::vector<std::uint8_t> codes;
  for (const float weight : group) {
    codes.push_back(nearest_code(weight, grid, format));
  }
  return format.bits == 8 && format.symmetric && cpu::largest_code_sum(codes) > cpu::kMostCodeSum;
}

// Expects the finest allowed scale up to rounding to f16: the one of the group's range or, for
// symmetric 8 bits, the one that bounds the sums of codes.
void expect_fine(const std::vector<float>& weights, const QuantizedMatrix& matrix) {
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t g = 0; g < matrix.groups(); ++g) {
      const auto* first = weights.data() + row * matrix.inputs + g * matrix.format.group;
      const auto* last = weights.data() + row * matrix.inputs +
                         std::min(matrix.inputs, (g + 1) * matrix.format.group);
      const float low = std::min(0.0F, *std::min_element(first, last));
      const float high = std::max(0.0F, *std::max_element(first, last));
      const float range = matrix.format.symmetric ? 2.0F * std::max(-low, high) : high - low;
      const float finest = range / static_cast<float>(matrix.format.codes() - 1);
      const auto at = static_cast<std::size_t>(row * matrix.groups() + g);
      ASSERT_GE(matrix.scales[at], finest);
      if (adds_up_to_too_much(std::span(first, last), matrix.format)) {
        const auto codes = std::span(matrix.codes)
                               .subspan(static_cast<std::size_t>(first - weights.data()),
                                        static_cast<std::size_t>(last - first));
        const int sum = cpu::largest_code_sum(codes);
        ASSERT_LE(sum, cpu::kMostCodeSum);
        ASSERT_GT(sum, cpu::kMostCodeSum - 48);  // the smallest scales are far apart
      } else {
        ASSERT_LE(matrix.scales[at], finest * (1.0F + 0x1.0p-10F) + 0x1.0p-24F);
      }
      ASSERT_EQ(matrix.scales[at], cpu::float_from_f16(cpu::f16_from(matrix.scales[at])));
    }
  }
}

TEST(RoundToNearest, NoErrorIsLargerThanHalfTheScale) {
  std::mt19937 random(7);
  for (const QuantFormat& format : every_format()) {
    for (const std::int64_t inputs : {1, 31, 32, 100, 128, 200, 384}) {
      for (const float spread : {1e-4F, 0.02F, 1.0F, 300.0F}) {
        std::normal_distribution<float> normal(0.0F, spread);
        std::vector<float> weights(static_cast<std::size_t>(5 * inputs));
        std::generate(weights.begin(), weights.end(), [&] { return normal(random); });
        const QuantizedMatrix matrix = round_to_nearest(weights, inputs, format);
        ASSERT_EQ(matrix.rows, 5);
        expect_close(weights, matrix);
        expect_fine(weights, matrix);
      }
    }
  }
}

TEST(RoundToNearest, RowsThatLeanToOneSideAndOutliersStayWithinTheBound) {
  std::mt19937 random(8);
  std::uniform_real_distribution<float> positive(0.5F, 0.9F);
  for (const QuantFormat& format : every_format()) {
    std::vector<float> weights(3 * 256);
    std::generate(weights.begin(), weights.end(), [&] { return positive(random); });
    std::transform(weights.begin(), weights.begin() + 256, weights.begin(),
                   [](float weight) { return -weight; });
    weights[300] = 40.0F;
    weights[600] = -65504.0F;
    const QuantizedMatrix matrix = round_to_nearest(weights, 256, format);
    expect_close(weights, matrix);
    expect_fine(weights, matrix);
  }
}

// Codes of these weights round down at the finest scale and up at the larger scale that replaces
// it.
TEST(RoundToNearest, BoundsWhatCodesAddUpToOfWeightsBetweenCodes) {
  const std::vector<float> weights = {65.49F, 65.49F, 127.5F, 0, 65.49F, 64.49F, 0, 0};
  const QuantizedMatrix matrix =
      round_to_nearest(weights, 8, {.bits = 8, .group = 32, .symmetric = true});
  EXPECT_LE(cpu::largest_code_sum(matrix.codes), cpu::kMostCodeSum);
  expect_close(weights, matrix);
}

TEST(RoundToNearest, ZerosAreExactEverywhere) {
  for (const QuantFormat& format : every_format()) {
    std::vector<float> weights(2 * 128, 0.0F);
    for (std::size_t i = 128; i < weights.size(); i += 3) {
      weights[i] = 0.1F * static_cast<float>(i);
    }
    const std::vector<float> again = dequantized(round_to_nearest(weights, 128, format));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0.0F) {
        ASSERT_EQ(again[i], 0.0F) << i;
      }
    }
  }
}

TEST(RoundToNearest, TinyWeightsKeepAScale) {
  for (const QuantFormat& format : every_format()) {
    const std::vector<float> weights(64, 1e-30F);
    const QuantizedMatrix matrix = round_to_nearest(weights, 64, format);
    EXPECT_GT(matrix.scales[0], 0.0F);
    expect_close(weights, matrix);
  }
}

TEST(RoundToNearest, ConstantRowsKeepTheirValue) {
  for (const QuantFormat& format : every_format()) {
    for (const float value : {0.3F, -0.3F}) {
      const std::vector<float> weights(128, value);
      const std::vector<float> again = dequantized(round_to_nearest(weights, 128, format));
      const float bound =
          format.symmetric ? 0.51F / static_cast<float>(format.codes() / 2 - 1) : 1e-3F;
      EXPECT_NEAR(again[0], value, std::fabs(value) * bound) << format.bits;
    }
  }
}

TEST(RoundToNearest, AGroupKnowsNothingOfItsNeighbour) {
  std::vector<float> weights(256, 0.01F);
  weights[200] = 100.0F;
  const QuantizedMatrix matrix = round_to_nearest(weights, 256, {4, 128, false});
  EXPECT_LT(matrix.scales[0], 0.001F);
  EXPECT_GT(matrix.scales[1], 6.0F);
}

TEST(RoundToNearest, SymmetricCodesLieAboutTheMiddle) {
  for (const int bits : {8, 4, 3}) {
    const QuantizedMatrix matrix =
        round_to_nearest(std::vector<float>{0.0F, 1.0F, -1.0F}, 3, {bits, 32, true});
    const int middle = 1 << (bits - 1);
    EXPECT_EQ(int{matrix.codes[0]}, middle);
    EXPECT_EQ(matrix.offsets[0], -matrix.scales[0] * static_cast<float>(middle));
  }
}

TEST(RoundToNearest, WhatHasNoScaleInF16IsSaid) {
  EXPECT_TRUE(can_quantize(std::vector<float>{65504.0F, -65504.0F, 0.0F}));
  for (const float bad : {65505.0F, -1e30F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(can_quantize(std::vector<float>{0.0F, bad}));
  }
}

TEST(QuantFormat, OtherSizesAreRefused) {
  EXPECT_TRUE(validate(QuantFormat{8, 32, true}).ok());
  EXPECT_FALSE(validate(QuantFormat{5, 32, true}).ok());
  EXPECT_FALSE(validate(QuantFormat{4, 16, true}).ok());
}

TEST(F16, EveryHalfComesBack) {
  for (std::uint32_t half = 0; half < 0x10000U; ++half) {
    const float value = cpu::float_from_f16(static_cast<std::uint16_t>(half));
    if (!std::isnan(value)) {
      ASSERT_EQ(cpu::f16_from(value), half);
    }
  }
}

TEST(F16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t half = 0; half < 0x7BFFU; ++half) {
    const float low = cpu::float_from_f16(static_cast<std::uint16_t>(half));
    const float high = cpu::float_from_f16(static_cast<std::uint16_t>(half + 1));
    const float middle = (low + high) / 2.0F;  // exact
    ASSERT_EQ(cpu::f16_from(middle), half + (half & 1U)) << half;
    ASSERT_EQ(cpu::f16_from(std::nextafter(middle, low)), half);
    ASSERT_EQ(cpu::f16_from(-std::nextafter(middle, high)), (half + 1) | 0x8000U);
  }
  EXPECT_EQ(cpu::f16_from(65519.9F), 0x7BFF);
  EXPECT_EQ(cpu::f16_from(65520.0F), 0x7C00);
}

}  // namespace
}  // namespace protean
