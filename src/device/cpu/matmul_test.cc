#include "device/cpu/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "device/cpu/elementwise.h"
#include "device/cpu/every_target.h"
#include "device/cpu/memory.h"

namespace protean::cpu {
namespace {

// A matrix in the row-major form it was made from and packed.
struct Weights {
  std::vector<float> rows;  // already rounded to the element
  Region memory;
  PackedMatrix packed;
};

class Matmul : public EveryTarget {
 protected:
  Weights random_weights(Element element, std::int64_t outputs, std::int64_t inputs) {
    Weights weights;
    weights.rows = random_floats(outputs * inputs);
    weights.packed = {.element = element, .outputs = outputs, .inputs = inputs};
    weights.memory = Region::map(weights.packed.bytes()).value();
    weights.packed.data = weights.memory.data();
    for (std::int64_t panel = 0; panel < weights.packed.panels(); ++panel) {
      const std::int64_t first = panel * PackedMatrix::kPanel;
      const auto count = std::min<std::int64_t>(PackedMatrix::kPanel, outputs - first);
      pack_panel(weights.packed, panel, weights.rows.data() + first * inputs,
                 static_cast<int>(count));
    }
    round_to(element, weights.rows);
    return weights;
  }
  std::vector<float> random_rows(Element element, std::int64_t count) {
    std::vector<float> x = random_floats(count);
    round_to(element, x);
    return x;
  }
};

struct Size {
  std::int64_t m, inputs, outputs;
};

TEST_P(Matmul, AgreesWithDoublePrecision) {
  Team team(2);
  const Size sizes[] = {{1, 1, 1},    {2, 3, 5},     {1, 64, 129},  {5, 7, 33},    {7, 1030, 31},
                        {13, 64, 96}, {26, 300, 70}, {250, 17, 40}, {3, 129, 300}, {12, 2, 257}};
  for (const Element element : {Element::kF32, Element::kBf16}) {
    for (const auto& [m, inputs, outputs] : sizes) {
      const Weights weights = random_weights(element, outputs, inputs);
      const std::vector<float> x = random_rows(element, m * inputs);
      const std::vector<float> bias = random_floats(outputs);
      const std::vector<float> before = random_floats(m * outputs);
      for (const bool with_bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          std::vector<float> out = before;
          out.push_back(12345.0f);  // must not be touched
          matmul(team, x, weights.packed, std::span(out).first(out.size() - 1),
                 {.bias = with_bias ? bias.data() : nullptr, .accumulate = accumulate});
          EXPECT_EQ(out.back(), 12345.0f);
          for (std::int64_t r = 0; r < m; ++r) {
            for (std::int64_t o = 0; o < outputs; ++o) {
              double sum = with_bias ? bias[o] : 0.0;
              double size = std::abs(sum);
              for (std::int64_t i = 0; i < inputs; ++i) {
                const double term = double{x[r * inputs + i]} * weights.rows[o * inputs + i];
                sum += term;
                size += std::abs(term);
              }
              sum += accumulate ? before[r * outputs + o] : 0.0;
              size += accumulate ? std::abs(before[r * outputs + o]) : 0.0;
              ASSERT_NEAR(out[r * outputs + o], sum, size * 6e-8 * (4 + std::sqrt(inputs)))
                  << m << "x" << inputs << "x" << outputs << " row " << r << " output " << o;
            }
          }
        }
      }
    }
  }
}

// bf16 products are exact, so the definition in the header can be followed step by step.
TEST_P(Matmul, IsOneChainOfAdditionsInOrder) {
  Team team(2);
  const std::int64_t m = 14, inputs = 777, outputs = 45;
  const Weights weights = random_weights(Element::kBf16, outputs, inputs);
  const std::vector<float> x = random_rows(Element::kBf16, m * inputs);
  const std::vector<float> bias = random_floats(outputs);
  std::vector<float> out = random_floats(m * outputs);
  std::vector<float> expected = out;
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      float sum = 0;
      for (std::int64_t i = 0; i < inputs; ++i) {
        sum += x[r * inputs + i] * weights.rows[o * inputs + i];
      }
      expected[r * outputs + o] += sum + bias[o];
    }
  }
  matmul(team, x, weights.packed, out, {.bias = bias.data(), .accumulate = true});
  EXPECT_EQ(out, expected);
}

TEST_P(Matmul, GivesARowTheSameBitsInAnyBatch) {
  constexpr std::int64_t kRows = 500;
  for (const Element element : {Element::kF32, Element::kBf16}) {
    for (const auto& [inputs, outputs] : {std::pair{700, 293}, {1100, 64}, {33, 31}}) {
      const Weights weights = random_weights(element, outputs, inputs);
      const std::vector<float> x = random_rows(element, kRows * inputs);
      const std::vector<float> bias = random_floats(outputs);
      const MatmulOptions options{.bias = bias.data()};
      std::vector<float> alone(kRows * outputs);
      Team one(1);
      for (std::int64_t r = 0; r < kRows; ++r) {
        matmul(one, std::span(x).subspan(r * inputs, inputs), weights.packed,
               std::span(alone).subspan(r * outputs, outputs), options);
      }
      std::vector<std::int64_t> batches = {130, kRows};
      for (std::int64_t m = 1; m <= 33; ++m) {
        batches.push_back(m);
      }
      for (int threads = 1; threads <= 3; ++threads) {
        Team team(threads);
        std::int64_t first = 0;
        for (const std::int64_t m : batches) {
          first = m == kRows ? 0 : (first + 41) % (kRows - m);
          std::vector<float> out(m * outputs);
          matmul(team, std::span(x).subspan(first * inputs, m * inputs), weights.packed, out,
                 options);
          ASSERT_EQ(
              std::memcmp(out.data(), alone.data() + first * outputs, out.size() * sizeof(float)),
              0)
              << "m " << m << " threads " << threads << " inputs " << inputs;
        }
      }
    }
  }
}

TEST_P(Matmul, GathersTheRowsItPacked) {
  for (const Element element : {Element::kF32, Element::kBf16}) {
    const std::int64_t inputs = 37, outputs = 70;
    const Weights weights = random_weights(element, outputs, inputs);
    const std::vector<TokenId> ids = {69, 0, 31, 32, 33, 69, 63, 64};
    std::vector<float> out(ids.size() * inputs);
    gather_rows(weights.packed, ids, out);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(std::memcmp(out.data() + i * inputs, weights.rows.data() + ids[i] * inputs,
                            inputs * sizeof(float)),
                0)
          << "id " << ids[i];
    }
  }
}

TEST_P(Matmul, FillsTheLastPanelWithZeros) {
  PackedMatrix matrix{.element = Element::kBf16, .outputs = 33, .inputs = 3};
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(matrix.bytes()) / 2, 0xffff);
  matrix.data = reinterpret_cast<std::byte*>(memory.data());
  const float row[] = {1.0f, 2.0f, 3.0f};
  pack_panel(matrix, 1, row, 1);
  EXPECT_EQ(memory[0], 0xffff);  // another panel's
  for (int i = 0; i < 3; ++i) {
    for (int column = 1; column < 32; ++column) {
      EXPECT_EQ(memory[static_cast<std::size_t>((3 + i) * 32 + column)], 0);
    }
  }
  EXPECT_EQ(memory[3 * 32], 0x3f80);
}

TEST_P(Matmul, HasNothingToDoForNoRows) {
  Team team(1);
  const Weights weights = random_weights(Element::kBf16, 4, 4);
  matmul(team, {}, weights.packed, {});
}

PROTEAN_ON_EVERY_TARGET(Matmul);

}  // namespace
}  // namespace protean::cpu
