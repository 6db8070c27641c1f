#include "quant/coordinate_descent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "quant/correlated_inputs_for_test.h"
#include "quant/dequantized_for_test.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

constexpr std::int64_t kBothHalves = 256;  // more inputs than one block
constexpr std::int64_t kManyRows = 150;    // more rows than one block

class CoordinateDescent : public testing::Test {
 protected:
  InputStatistics statistics_of(std::span<const float> inputs) {
    InputStatistics statistics(kBothHalves);
    statistics.add(team_, inputs, cpu::Element::kBf16);
    return statistics;
  }
  static QuantizedMatrix descended(cpu::Team& team, const std::vector<float>& weights,
                                   const InputStatistics& inputs, const QuantFormat& format) {
    QuantizedMatrix matrix = round_to_nearest(weights, kBothHalves, format);
    descend(team, weights, inputs, matrix);
    return matrix;
  }

  cpu::Team team_{1};
  std::vector<float> weights_ = random_weights(kManyRows * kBothHalves, 31);
};

TEST_F(CoordinateDescent, LosesLessOfUnseenTextOnTheSameGrids) {
  const std::vector<float> inputs = correlated_inputs(1200, kBothHalves, 4, 32);
  const std::vector<float> unseen(inputs.begin() + 900 * kBothHalves, inputs.end());
  const InputStatistics seen = statistics_of(std::span(inputs).first(900 * kBothHalves));
  for (const QuantFormat& format :
       {QuantFormat{3, 64, false}, QuantFormat{4, 128, true}, QuantFormat{8, 32, false}}) {
    const QuantizedMatrix nearest = round_to_nearest(weights_, kBothHalves, format);
    const QuantizedMatrix found = descended(team_, weights_, seen, format);
    EXPECT_EQ(found.scales, nearest.scales);
    EXPECT_EQ(found.offsets, nearest.offsets);
    EXPECT_LT(*std::max_element(found.codes.begin(), found.codes.end()), format.codes());
    EXPECT_LT(output_error(weights_, dequantized(found), unseen, kBothHalves),
              0.5 * output_error(weights_, dequantized(nearest), unseen, kBothHalves))
        << format.bits;
  }
}

TEST_F(CoordinateDescent, InputsFarApartMakeGoodForEachOther) {
  std::vector<float> inputs = random_weights(600 * kBothHalves, 33);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool second_half = i % kBothHalves >= kBothHalves / 2;
    inputs[i] =
        second_half ? inputs[i - kBothHalves / 2] : cpu::float_from(cpu::bf16_from(inputs[i]));
  }
  const QuantFormat format{4, 128, false};
  const QuantizedMatrix found = descended(team_, weights_, statistics_of(inputs), format);
  const QuantizedMatrix nearest = round_to_nearest(weights_, kBothHalves, format);
  EXPECT_LT(output_error(weights_, dequantized(found), inputs, kBothHalves),
            0.5 * output_error(weights_, dequantized(nearest), inputs, kBothHalves));
}

TEST_F(CoordinateDescent, AnyNumberOfThreadsFindsTheSameCodes) {
  const InputStatistics seen = statistics_of(correlated_inputs(400, kBothHalves, 4, 34));
  cpu::Team two(2);
  const QuantFormat format{4, 64, false};
  EXPECT_EQ(descended(team_, weights_, seen, format).codes,
            descended(two, weights_, seen, format).codes);
}

TEST_F(CoordinateDescent, TextThatSaysNothingLeavesTheNearest) {
  const QuantFormat format{4, 128, false};
  const std::vector<std::uint8_t> nearest = round_to_nearest(weights_, kBothHalves, format).codes;
  std::vector<float> inputs(kBothHalves);
  EXPECT_EQ(descended(team_, weights_, statistics_of(inputs), format).codes, nearest);
  inputs[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(descended(team_, weights_, statistics_of(inputs), format).codes, nearest);
}

}  // namespace
}  // namespace protean
