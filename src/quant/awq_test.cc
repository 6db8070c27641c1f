#include "quant/awq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "quant/correlated_inputs_for_test.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

constexpr std::int64_t kWidth = 192;
constexpr std::int64_t kRows = 48;

class Awq : public testing::Test {
 protected:
  Awq() { statistics_.add(team_, inputs_, cpu::Element::kBf16); }

  // Returns the output error if weights times scales are quantised and inputs divided by the
  // scales.
  double error_of(const QuantizedMatrix& matrix, const std::vector<float>& scales) const {
    std::vector<float> again(weights_.size());
    dequantize_rows(matrix.view(), 0, matrix.rows, again.data());
    for (std::size_t i = 0; i < again.size(); ++i) {
      again[i] /= scales[i % scales.size()];
    }
    return output_error(weights_, again, unseen_, kWidth);
  }
  std::vector<float> scaled(const std::vector<float>& scales) const {
    std::vector<float> weights = weights_;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] *= scales[i % scales.size()];
    }
    return weights;
  }
  static std::vector<float> take_first(std::vector<float>& from, std::int64_t count) {
    std::vector<float> first(from.begin(), from.begin() + count);
    from.erase(from.begin(), from.begin() + count);
    return first;
  }
  std::vector<float> search(const QuantFormat& format, std::span<const std::int32_t> shared = {}) {
    const std::span<const float> matrices[] = {weights_};
    return search_scales(team_, matrices, statistics_, format, shared);
  }

  cpu::Team team_{1};
  std::vector<float> unseen_ = correlated_inputs(800, kWidth, 4, 21);
  std::vector<float> inputs_ = take_first(unseen_, 500 * kWidth);
  std::vector<float> weights_ = random_weights(kRows * kWidth, 22);
  InputStatistics statistics_{kWidth};
};

TEST_F(Awq, ScalesOfSalientInputsLoseLessThanRounding) {
  const std::vector<float> ones(kWidth, 1.0F);
  for (const int bits : {3, 4}) {
    for (const bool symmetric : {false, true}) {
      const QuantFormat format{bits, 64, symmetric};
      const double rounded = error_of(round_to_nearest(weights_, kWidth, format), ones);
      const std::vector<float> scales = search(format);
      EXPECT_GT(*std::min_element(scales.begin(), scales.end()), 0.0F);
      const QuantizedMatrix found = round_to_nearest(scaled(scales), kWidth, format);
      EXPECT_LT(error_of(found, scales), 0.6 * rounded) << bits;
    }
  }
}

TEST_F(Awq, ClippingLosesLessAgain) {
  const QuantFormat format{3, 64, false};
  const std::vector<float> scales = search(format);
  InputStatistics divided = statistics_;
  divided.divide(scales);
  const std::vector<float> weights = scaled(scales);
  const QuantizedMatrix clipped = round_clipped(team_, weights, divided, format);
  EXPECT_LT(error_of(clipped, scales),
            0.95 * error_of(round_to_nearest(weights, kWidth, format), scales));
}

TEST_F(Awq, CodesLoseLessThanTheNearestOfTheirGrids) {
  const std::vector<float> ones(kWidth, 1.0F);
  const QuantFormat format{4, 64, false};
  const QuantizedMatrix found = round_clipped(team_, weights_, statistics_, format);
  QuantizedMatrix nearest = found;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const float scale = found.scales[i / 64];
    const GroupGrid grid{scale, static_cast<int>(std::round(-found.offsets[i / 64] / scale))};
    nearest.codes[i] = nearest_code(weights_[i], grid, format);
  }
  EXPECT_LT(error_of(found, ones), 0.5 * error_of(nearest, ones));
}

TEST_F(Awq, ClippingAgainstEqualInputsIsNoWorse) {
  InputStatistics plain(kWidth);
  std::vector<float> units(static_cast<std::size_t>(kWidth * kWidth));
  for (std::size_t i = 0; i < kWidth; ++i) {
    units[i * kWidth + i] = 1.0F;
  }
  plain.add(team_, units, cpu::Element::kF32);
  const QuantFormat format{4, 32, false};
  const auto squares = [&](const QuantizedMatrix& matrix) {
    std::vector<float> again(weights_.size());
    dequantize_rows(matrix.view(), 0, matrix.rows, again.data());
    return output_error(weights_, again, units, kWidth);
  };
  EXPECT_LE(squares(round_clipped(team_, weights_, plain, format)),
            squares(round_to_nearest(weights_, kWidth, format)));
}

TEST_F(Awq, SharedInputsGetOneScale) {
  std::vector<std::int32_t> shared(kWidth);
  for (std::size_t i = 0; i < shared.size(); ++i) {
    shared[i] = static_cast<std::int32_t>(i / 3);
  }
  const std::vector<float> scales = search({4, 64, false}, shared);
  bool any_other_than_one = false;
  for (std::size_t i = 0; i < scales.size(); i += 3) {
    EXPECT_EQ(scales[i], scales[i + 1]);
    EXPECT_EQ(scales[i], scales[i + 2]);
    any_other_than_one |= scales[i] != 1.0F;
  }
  EXPECT_TRUE(any_other_than_one);
}

TEST_F(Awq, InputsThatAreAlwaysZeroKeepFiniteScales) {
  std::vector<float> inputs = inputs_;
  for (std::size_t i = 5; i < inputs.size(); i += kWidth) {
    inputs[i] = 0.0F;
  }
  InputStatistics statistics(kWidth);
  statistics.add(team_, inputs, cpu::Element::kBf16);
  const std::span<const float> matrices[] = {weights_};
  for (const float scale : search_scales(team_, matrices, statistics, {4, 32, false})) {
    ASSERT_TRUE(scale > 0.0F && scale < 1e6F);
  }
}

}  // namespace
}  // namespace protean
