#include "quant/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "quant/correlated_inputs_for_test.h"
#include "quant/dequantized_for_test.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

InputStatistics statistics_of(const std::vector<float>& inputs, std::int64_t width) {
  cpu::Team team(1);
  InputStatistics statistics(width);
  statistics.add(team, inputs, cpu::Element::kBf16);
  return statistics;
}

TEST(InputStatistics, AreTheSumsTheySay) {
  const std::int64_t width = 40;
  const std::vector<float> inputs = correlated_inputs(700, width, 2, 1);  // more than one chunk
  cpu::Team team(2);
  InputStatistics statistics(width);
  const std::span<const float> all(inputs);
  statistics.add(team, all.first(100 * 40), cpu::Element::kBf16);
  statistics.add(team, all.subspan(100 * 40), cpu::Element::kBf16);
  EXPECT_EQ(statistics.rows(), 700);
  for (std::size_t i = 0; i < 40; ++i) {
    double magnitude = 0.0;
    for (std::size_t row = 0; row < 700; ++row) {
      magnitude += std::fabs(inputs[row * 40 + i]);
    }
    EXPECT_NEAR(statistics.magnitudes()[i], magnitude, 1e-9 * magnitude);
    for (std::size_t j = 0; j < 40; ++j) {
      double sum = 0.0;
      double size = 0.0;
      for (std::size_t row = 0; row < 700; ++row) {
        const double product = double{inputs[row * 40 + i]} * double{inputs[row * 40 + j]};
        sum += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(statistics.gram()[i * 40 + j], sum, 1e-5 * size) << i << ", " << j;
    }
  }
}

TEST(InputStatistics, DividedInputsHaveDividedStatistics) {
  const std::int64_t width = 32;
  std::vector<float> inputs = correlated_inputs(100, width, 0, 2);
  InputStatistics divided = statistics_of(inputs, width);
  std::vector<float> divisors(32);
  for (std::size_t i = 0; i < 32; ++i) {
    divisors[i] = std::ldexp(1.0F, static_cast<int>(i % 5) - 2);
  }
  divided.divide(divisors);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] /= divisors[i % 32];  // powers of two keep values exact
  }
  const InputStatistics again = statistics_of(inputs, width);
  for (std::size_t i = 0; i < 32 * 32; ++i) {
    ASSERT_FLOAT_EQ(divided.gram()[i], again.gram()[i]);
  }
  EXPECT_DOUBLE_EQ(divided.magnitudes()[7], again.magnitudes()[7]);
}

TEST(OutputError, IsThatOfTheInputsThemselves) {
  const std::int64_t width = 48;
  const std::vector<float> inputs = correlated_inputs(90, width, 1, 3);
  const InputStatistics statistics = statistics_of(inputs, width);
  const std::vector<float> errors = random_weights(5 * width, 4);
  const double expected = output_error(std::vector<float>(errors.size()), errors, inputs, width);
  cpu::Team team(1);
  EXPECT_NEAR(OutputError(team, statistics).of(errors), expected, 1e-4 * expected);
}

// Computes the method as the paper derives it (Optimal Brain Surgeon, section 3.1), without what
// makes it fast: recomputes the inverse Hessian of the remaining inputs after each input.
std::vector<std::vector<double>> inverse(std::vector<std::vector<double>> a) {
  const std::size_t n = a.size();
  std::vector<std::vector<double>> out(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    out[i][i] = 1.0;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double pivot = a[i][i];
    for (std::size_t j = 0; j < n; ++j) {
      a[i][j] /= pivot;
      out[i][j] /= pivot;
    }
    for (std::size_t k = 0; k < n; ++k) {
      const double factor = a[k][i];
      for (std::size_t j = 0; k != i && j < n; ++j) {
        a[k][j] -= factor * a[i][j];
        out[k][j] -= factor * out[i][j];
      }
    }
  }
  return out;
}

std::vector<std::uint8_t> slow_gptq(std::vector<double> row, const InputStatistics& statistics,
                                    const QuantFormat& format, double damping) {
  const std::size_t n = row.size();
  double mean = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    mean += statistics.gram()[i * n + i] / static_cast<double>(n);
  }
  std::vector<std::uint8_t> codes(n);
  GroupGrid grid;
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<std::vector<double>> left(n - i, std::vector<double>(n - i));
    for (std::size_t j = i; j < n; ++j) {
      for (std::size_t k = i; k < n; ++k) {
        left[j - i][k - i] = statistics.gram()[j * n + k] + (j == k ? damping * mean : 0.0);
      }
    }
    if (i % static_cast<std::size_t>(format.group) == 0) {
      const auto end = std::min(n, i + static_cast<std::size_t>(format.group));
      const auto [low, high] = std::minmax_element(row.begin() + static_cast<std::ptrdiff_t>(i),
                                                   row.begin() + static_cast<std::ptrdiff_t>(end));
      grid = fit_grid(static_cast<float>(*low), static_cast<float>(*high), format);
    }
    const auto inverted = inverse(left);
    codes[i] = nearest_code(static_cast<float>(row[i]), grid, format);
    const double error =
        (row[i] - double{grid.scale} * (int{codes[i]} - grid.zero)) / inverted[0][0];
    for (std::size_t j = i; j < n; ++j) {
      row[j] -= error * inverted[0][j - i];
    }
  }
  return codes;
}

TEST(Gptq, FindsTheCodesOfItsDefinition) {
  const std::int64_t width = 80;
  const InputStatistics statistics = statistics_of(correlated_inputs(300, width, 2, 5), width);
  for (const QuantFormat& format :
       {QuantFormat{4, 32, false}, QuantFormat{3, 64, true}, QuantFormat{8, 32, false}}) {
    const std::vector<float> weights = random_weights(3 * width, 6);
    const auto gptq = Gptq::factor(statistics, format, {.damping = 0.01});
    ASSERT_TRUE(gptq.ok());
    const QuantizedMatrix fast = gptq.value().quantize(weights);
    int other = 0;
    for (std::size_t row = 0; row < 3; ++row) {
      const auto first = weights.begin() + static_cast<std::ptrdiff_t>(row) * width;
      const std::vector<std::uint8_t> slow =
          slow_gptq({first, first + width}, statistics, format, 0.01);
      for (std::size_t i = 0; i < slow.size(); ++i) {
        other += std::abs(int{slow[i]} - int{fast.codes[row * 80 + i]});
      }
    }
    // f32 may round a tie to the other side, and then later codes differ.
    EXPECT_LE(other, format.bits == 8 ? 24 : 6) << format.bits;
  }
}

TEST(Gptq, LosesLessThanRoundingOnCorrelatedInputs) {
  const std::int64_t width = 200;  // the last group is shorter, and there are two blocks
  const std::vector<float> all = correlated_inputs(1200, width, 3, 7);
  const std::vector<float> inputs(all.begin(), all.begin() + 600 * width);
  const std::vector<float> unseen(all.begin() + 600 * width, all.end());
  const InputStatistics statistics = statistics_of(inputs, width);
  const std::vector<float> weights = random_weights(16 * width, 8);
  for (const int bits : {3, 4, 8}) {
    for (const bool symmetric : {false, true}) {
      const QuantFormat format{bits, 64, symmetric};
      const double rounded = output_error(
          weights, dequantized(round_to_nearest(weights, width, format)), unseen, width);
      for (const bool activation_order : {false, true}) {
        const auto gptq = Gptq::factor(statistics, format, {.activation_order = activation_order});
        ASSERT_TRUE(gptq.ok());
        const double error =
            output_error(weights, dequantized(gptq.value().quantize(weights)), unseen, width);
        EXPECT_LT(error, 0.6 * rounded) << bits << (activation_order ? ", in order" : "");
      }
    }
  }
}

TEST(Gptq, UncorrelatedInputsAreRoundedToNearest) {
  const std::int64_t width = 64;
  std::vector<float> inputs(static_cast<std::size_t>(width * width));
  for (std::size_t i = 0; i < 64; ++i) {
    inputs[i * 64 + i] = i == 9 ? 0.0F : 1.0F + static_cast<float>(i % 4);  // input 9 is always 0
  }
  const std::vector<float> weights = random_weights(4 * width, 9);
  const QuantFormat format{4, 32, false};
  for (const bool activation_order : {false, true}) {
    const auto gptq =
        Gptq::factor(statistics_of(inputs, width), format, {.activation_order = activation_order});
    ASSERT_TRUE(gptq.ok());
    const QuantizedMatrix found = gptq.value().quantize(weights);
    const QuantizedMatrix nearest = round_to_nearest(weights, width, format);
    EXPECT_EQ(found.codes, nearest.codes);
    EXPECT_EQ(found.scales, nearest.scales);
    EXPECT_EQ(found.offsets, nearest.offsets);
  }
}

TEST(Gptq, ARowDoesNotDependOnOthers) {
  const std::int64_t width = 160;
  const InputStatistics statistics = statistics_of(correlated_inputs(300, width, 2, 10), width);
  const std::vector<float> weights = random_weights(6 * width, 11);
  const auto gptq = Gptq::factor(statistics, {4, 32, false});
  ASSERT_TRUE(gptq.ok());
  const QuantizedMatrix all = gptq.value().quantize(weights);
  const QuantizedMatrix one = gptq.value().quantize(std::span(weights).subspan(160 * 4, 160));
  int other = 0;
  for (std::size_t i = 0; i < 160; ++i) {
    other += static_cast<int>(one.codes[i] != all.codes[160 * 4 + i]);
  }
  EXPECT_LE(other, 8);  // the order of sums may differ
}

TEST(Gptq, StatisticsThatAreNotFiniteAreRefused) {
  InputStatistics statistics(32);
  std::vector<float> inputs(32, 1.0F);
  inputs[3] = std::numeric_limits<float>::infinity();
  cpu::Team team(1);
  statistics.add(team, inputs, cpu::Element::kBf16);
  EXPECT_FALSE(Gptq::factor(statistics, {4, 32, false}).ok());
}

}  // namespace
}  // namespace protean
