#include "device/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/cpu/bf16.h"
#include "device/cpu/every_target_for_test.h"

namespace protean::cpu {
namespace {

class Elementwise : public EveryTarget {};

// Returns the nearest bf16, ties to even, by comparing distances instead of arithmetic on bits.
float nearest_bf16(float value) {
  if (std::isnan(value) || std::isinf(value)) {
    return value;
  }
  const auto down_bits = std::bit_cast<std::uint32_t>(value) & 0xffff0000U;
  const auto down = std::bit_cast<float>(down_bits);
  const auto up = std::bit_cast<float>(down_bits + 0x10000U);
  // For rounding, the value after the largest bf16 is 2^128.
  const double up_value = std::isinf(up) ? std::copysign(std::ldexp(1.0, 128), value) : up;
  const double to_down = std::abs(double{value} - down);
  const double to_up = std::abs(up_value - value);
  if (to_down != to_up) {
    return to_down < to_up ? down : up;
  }
  return (down_bits & 0x10000U) == 0 ? down : up;
}

TEST_P(Elementwise, RoundsToTheNearestBf16) {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  values.push_back(1.00001f);  // makes the count odd, to test the end of a row
  std::vector<float> rounded = values;
  round_to(Element::kBf16, rounded);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float one_by_one = float_from(bf16_from(values[i]));
    ASSERT_EQ(std::memcmp(&rounded[i], &one_by_one, sizeof(float)), 0) << values[i];
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(rounded[i]));
    } else {
      ASSERT_EQ(rounded[i], nearest_bf16(values[i])) << values[i];
      ASSERT_EQ(std::signbit(rounded[i]), std::signbit(values[i]));
    }
  }
  std::vector<float> same = {1.00001f, std::numeric_limits<float>::denorm_min()};
  round_to(Element::kF32, same);
  EXPECT_EQ(same[0], 1.00001f);
  EXPECT_EQ(same[1], std::numeric_limits<float>::denorm_min());
}

TEST_P(Elementwise, NormalisesRows) {
  Team team(2);
  for (const std::size_t width : {1, 7, 8, 24, 64, 100, 129, 2048}) {
    const std::size_t rows = 19;
    const std::vector<float> x = random_floats(static_cast<std::int64_t>(rows * width));
    const std::vector<float> weight = random_floats(static_cast<std::int64_t>(width));
    std::vector<float> out(x.size());
    rms_norm(team, x, {weight, 1e-5f}, Element::kF32, out);
    for (std::size_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (std::size_t i = 0; i < width; ++i) {
        squares += double{x[r * width + i]} * x[r * width + i];
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
      for (std::size_t i = 0; i < width; ++i) {
        const double expected = x[r * width + i] * scale * weight[i];
        ASSERT_NEAR(out[r * width + i], expected, std::abs(expected) * 2e-6);
      }
    }
    // Tests rounding, in place, and one row at a time.
    std::vector<float> in_place = x;
    rms_norm(team, in_place, {weight, 1e-5f}, Element::kBf16, in_place);
    round_to(Element::kBf16, out);
    EXPECT_EQ(in_place, out);
    for (std::size_t r = 0; r < rows; ++r) {
      std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(r * width),
                             x.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
      rms_norm(team, row, {weight, 1e-5f}, Element::kBf16, row);
      EXPECT_EQ(std::memcmp(row.data(), out.data() + r * width, width * sizeof(float)), 0);
    }
  }
}

TEST_P(Elementwise, AppliesSwiglu) {
  Team team(3);
  std::vector<float> gate = random_floats(40000);
  for (std::size_t i = 0; i < 2000; ++i) {
    gate[i] = static_cast<float>(i) * 0.2f - 200.0f;
  }
  gate[2000] = std::numeric_limits<float>::quiet_NaN();
  gate[2001] = std::numeric_limits<float>::infinity();
  std::vector<float> up = random_floats(40000);
  up[2001] = 2.0f;
  std::vector<float> out(gate.size());
  swiglu(team, gate, up, Element::kF32, out);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
    if (i == 2000) {
      EXPECT_TRUE(std::isnan(out[i]));
    } else if (i == 2001) {
      EXPECT_EQ(out[i], std::numeric_limits<float>::infinity());
    } else {
      ASSERT_NEAR(out[i], expected, std::abs(expected) * 6e-7 + 1e-35) << gate[i];
    }
  }
  // The bits of an element do not depend on its place, that is on its lane.
  for (const std::size_t first : {1, 3, 20, 39000}) {
    const std::size_t count = 39 + first % 7;
    std::vector<float> part(count);
    swiglu(team, std::span(gate).subspan(first, count), std::span(up).subspan(first, count),
           Element::kF32, part);
    EXPECT_EQ(std::memcmp(part.data(), out.data() + first, count * sizeof(float)), 0);
  }
  std::vector<float> in_place(gate.begin() + 3000, gate.end());
  swiglu(team, in_place, std::span(up).subspan(3000), Element::kBf16, in_place);
  round_to(Element::kBf16, out);
  EXPECT_TRUE(std::equal(in_place.begin(), in_place.end(), out.begin() + 3000));
}

TEST_P(Elementwise, NormalisesRowsAroundTheirMean) {
  Team team(2);
  for (const std::size_t width : {1, 7, 24, 64, 129, 2048}) {
    const std::size_t rows = 5;
    const std::vector<float> x = random_floats(static_cast<std::int64_t>(rows * width));
    const std::vector<float> weight = random_floats(static_cast<std::int64_t>(width));
    const std::vector<float> bias = random_floats(static_cast<std::int64_t>(width));
    for (const bool biased : {false, true}) {
      const LayerNorm norm{weight, biased ? std::span(bias) : std::span<const float>(), 1e-3f};
      std::vector<float> out(x.size());
      layer_norm(team, x, norm, Element::kF32, out);
      for (std::size_t r = 0; r < rows; ++r) {
        double mean = 0, variance = 0;
        for (std::size_t i = 0; i < width; ++i) {
          mean += double{x[r * width + i]} / static_cast<double>(width);
        }
        for (std::size_t i = 0; i < width; ++i) {
          variance += std::pow(x[r * width + i] - mean, 2.0) / static_cast<double>(width);
        }
        for (std::size_t i = 0; i < width; ++i) {
          const double unit = (x[r * width + i] - mean) / std::sqrt(variance + 1e-3);
          ASSERT_NEAR(out[r * width + i], unit * weight[i] + (biased ? bias[i] : 0.0f), 1e-5);
        }
      }
      std::vector<float> last(x.end() - static_cast<std::ptrdiff_t>(width), x.end());
      layer_norm(team, last, norm, Element::kBf16, last);
      round_to(Element::kBf16, out);
      EXPECT_TRUE(std::equal(last.rbegin(), last.rend(), out.rbegin()));
    }
  }
}

TEST_P(Elementwise, Activates) {
  Team team(2);
  std::vector<float> x = random_floats(20001);
  for (std::size_t i = 0; i < 2000; ++i) {
    x[i] = static_cast<float>(i) * 0.02f - 20.0f;
  }
  const std::vector<float> factor = random_floats(20001);
  const auto expected = [](Activation activation, double v) {
    switch (activation) {
      case Activation::kSilu:
        return v / (1 + std::exp(-v));
      case Activation::kGelu:
        return v / 2 * (1 + std::erf(v / std::sqrt(2.0)));
      case Activation::kGeluTanh:
        return v / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
      case Activation::kRelu:
        return std::max(v, 0.0);
    }
    return 0.0;
  };
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    std::vector<float> alone(x.size()), product(x.size());
    activate(team, {x, {}, activation}, Element::kF32, alone);
    activate(team, {x, factor, activation}, Element::kF32, product);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = expected(activation, x[i]);
      const double error = 1e-6 * std::max(0.5, std::abs(double{x[i]}));
      ASSERT_NEAR(alone[i], want, error) << x[i];
      ASSERT_NEAR(product[i], want * factor[i], error) << x[i];
    }
    // The bits of an element do not depend on its place.
    std::vector<float> part(39);
    activate(team, {std::span(x).subspan(3, 39), std::span(factor).subspan(3, 39), activation},
             Element::kF32, part);
    EXPECT_EQ(std::memcmp(part.data(), product.data() + 3, 39 * sizeof(float)), 0);
    activate(team, {product, {}, Activation::kRelu}, Element::kBf16, product);
    for (const float value : product) {
      ASSERT_EQ(value, nearest_bf16(value));
    }
  }
}

TEST_P(Elementwise, ScalesAndCaps) {
  Team team(2);
  const std::vector<float> x = random_floats(20003);
  std::vector<float> capped = x, scaled = x, sum = x;
  scale_and_cap(team, 40.0f, 30.0f, capped);
  scale_and_cap(team, 0.3f, 0.0f, scaled);
  add_scaled(team, x, -2.5f, sum);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(capped[i], 30 * std::tanh(double{x[i]} * 40 / 30), 1e-5);
    ASSERT_EQ(scaled[i], 0.3f * x[i]);
    ASSERT_NEAR(sum[i], -1.5 * x[i], 1e-6);
  }
}

TEST_P(Elementwise, RotatesAPartOfEachHead) {
  Team team(1);
  const int head_dim = 24, rotated = 10, heads = 2;
  const std::vector<float> cosines(5, 0.0f), sines(5, 1.0f);
  for (const bool adjacent : {false, true}) {
    const std::vector<float> x = random_floats(heads * head_dim);
    std::vector<float> out = x;
    rope(team, out, heads, std::vector<int>{0}, {cosines, sines, rotated / 2, adjacent});
    for (int i = 0; i < heads * head_dim; ++i) {
      const int at = i % head_dim;
      const bool first = adjacent ? at % 2 == 0 : at < rotated / 2;
      const int other = adjacent ? 1 : rotated / 2;
      EXPECT_EQ(out[i], at >= rotated ? x[i] : first ? -x[i + other] : x[i - other]);
    }
  }
}

TEST_P(Elementwise, RotatesHeads) {
  Team team(2);
  for (const int head_dim : {8, 24, 64, 80, 128}) {
    const int half = head_dim / 2, heads = 3;
    const std::vector<int> positions = {0, 5, 6, 2, 40, 40, 17};
    std::vector<float> cosines, sines;
    for (int position = 0; position < 41; ++position) {
      for (int i = 0; i < half; ++i) {
        const double angle = position * std::pow(10000.0, -i / double(half));
        cosines.push_back(static_cast<float>(std::cos(angle)));
        sines.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    for (const bool adjacent : {false, true}) {
      const RopeTable table{cosines, sines, half, adjacent};
      const std::vector<float> x = random_floats(std::ssize(positions) * heads * head_dim);
      std::vector<float> out = x;
      rope(team, out, heads, positions, table);
      for (std::size_t r = 0; r < positions.size(); ++r) {
        for (int head = 0; head < heads; ++head) {
          const std::size_t at = (r * heads + static_cast<std::size_t>(head)) * head_dim;
          for (int i = 0; i < half; ++i) {
            const std::size_t a = at + static_cast<std::size_t>(adjacent ? 2 * i : i);
            const std::size_t b = at + static_cast<std::size_t>(adjacent ? 2 * i + 1 : i + half);
            const double angle = positions[r] * std::pow(10000.0, -i / double(half));
            EXPECT_NEAR(out[a], x[a] * std::cos(angle) - x[b] * std::sin(angle), 1e-6);
            EXPECT_NEAR(out[b], x[b] * std::cos(angle) + x[a] * std::sin(angle), 1e-6);
          }
        }
      }
      std::vector<float> last(x.end() - heads * head_dim, x.end());
      rope(team, last, heads, std::span(positions).last(1), table);
      EXPECT_TRUE(std::equal(last.begin(), last.end(), out.end() - heads * head_dim));
    }
  }
}

PROTEAN_ON_EVERY_TARGET(Elementwise);

}  // namespace
}  // namespace protean::cpu
