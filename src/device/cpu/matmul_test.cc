#include "device/cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "device/cpu/dot.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/every_target_for_test.h"
#include "device/cpu/f16.h"
#include "device/cpu/memory.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {
namespace {

constexpr WeightFormat kF32{.kind = WeightKind::kF32};
constexpr WeightFormat kBf16{.kind = WeightKind::kBf16};
constexpr WeightFormat kTwoOfFour{.kind = WeightKind::kTwoOfFour};

std::vector<WeightFormat> every_format() {
  std::vector<WeightFormat> formats = {kF32, kBf16, kTwoOfFour};
  for (const WeightKind kind : {WeightKind::kW8, WeightKind::kW4, WeightKind::kW3}) {
    for (const int group : {32, 64, 128}) {
      formats.push_back({.kind = kind, .group = group, .symmetric = true});
      formats.push_back({.kind = kind, .group = group, .symmetric = false});
    }
  }
  return formats;
}

std::string name_of(const WeightFormat& format) {
  return std::to_string(format.bits()) + " bits, group " + std::to_string(format.group) +
         (format.symmetric ? ", symmetric" : "");
}

// A packed matrix, and its weights in row-major form.
struct Weights {
  std::vector<float> rows;
  // For quantised matrices: codes [outputs][inputs], scales and offsets of middle codes
  // [outputs][groups].
  std::vector<float> codes, scales, offsets;
  Region memory;
  PackedMatrix packed;
  float largest = 0;  // largest of `rows`, if quantised
};

// Rows arranged for an instruction set, with their memory.
struct Arranged {
  Arranged(Team& team, std::span<const float> x, const PackedMatrix& weights, MatmulIsa isa)
      : memory(static_cast<std::size_t>(
            arranged_rows_bytes(std::ssize(x) / weights.inputs, weights.inputs))),
        rows(arrange_rows(team, x, weights, memory, isa)) {}

  std::vector<std::byte> memory;
  MatmulRows rows;
};

class Matmul : public EveryTarget {
 protected:
  Weights random_weights(const WeightFormat& format, std::int64_t outputs, std::int64_t inputs) {
    Weights weights;
    weights.packed = {.format = format, .outputs = outputs, .inputs = inputs};
    weights.memory = Region::map(weights.packed.bytes()).value();
    weights.packed.data = weights.memory.data();
    if (format.quantized()) {
      pack_random_codes(weights);
      for (const float weight : weights.rows) {
        weights.largest = std::max(weights.largest, std::abs(weight));
      }
      return weights;
    }
    weights.rows = random_floats(outputs * inputs);
    if (format.kind == WeightKind::kTwoOfFour) {
      prune(weights.rows, inputs);
    }
    for (std::int64_t panel = 0; panel < weights.packed.panels(); ++panel) {
      const std::int64_t first = panel * PackedMatrix::kPanel;
      const auto count = std::min<std::int64_t>(PackedMatrix::kPanel, outputs - first);
      pack_panel(weights.packed, panel, weights.rows.data() + first * inputs,
                 static_cast<int>(count));
    }
    round_to(format.inputs(), weights.rows);
    return weights;
  }

  // Zeros two, sometimes three or all of four consecutive inputs of each row.
  void prune(std::vector<float>& rows, std::int64_t inputs) {
    for (std::size_t at = 0; at < rows.size(); ++at) {
      const auto four = static_cast<std::int64_t>(at) % inputs / 4 * 4;
      if (static_cast<std::int64_t>(at) % inputs == four) {
        const auto left = std::min<std::int64_t>(4, inputs - four);
        for (int zeros = 0; zeros < 3; ++zeros) {
          rows[at + random()() % static_cast<std::size_t>(left)] = 0;
        }
        int kept = 0;
        for (std::int64_t i = 0; i < left; ++i) {
          float& weight = rows[at + static_cast<std::size_t>(i)];
          kept += weight != 0 ? 1 : 0;
          weight = kept > 2 ? 0 : weight;
        }
      }
    }
  }

  void pack_random_codes(Weights& weights) {
    const PackedMatrix& packed = weights.packed;
    const int bits = packed.format.bits();
    const float middle = static_cast<float>(1 << (bits - 1));
    QuantizedRows rows{.bits = bits, .group = packed.format.group, .inputs = packed.inputs};
    const auto groups = static_cast<std::size_t>(rows.groups());
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(32 * packed.inputs));
    std::vector<float> scales(32 * groups);
    std::vector<float> offsets(32 * groups);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);
    for (std::int64_t panel = 0; panel < packed.panels(); ++panel) {
      const auto count = static_cast<std::size_t>(
          std::min<std::int64_t>(PackedMatrix::kPanel, packed.outputs - panel * 32));
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const std::int64_t input = static_cast<std::int64_t>(i) % packed.inputs;
        codes[i] = static_cast<std::uint8_t>(random_code(bits, input) + (1 << (bits - 1)));
      }
      for (std::size_t i = 0; i < scales.size(); ++i) {
        // Like those of quantisers: a scale that is exact in f16, and an integer zero point.
        const int zero =
            packed.format.symmetric ? 1 << (bits - 1) : static_cast<int>(random()() % 8);
        scales[i] = float_from_f16(f16_from(scale(random())));
        offsets[i] = static_cast<float>(-zero) * scales[i];
      }
      const auto inputs = static_cast<std::size_t>(packed.inputs);
      rows.codes = std::span(codes).first(count * inputs);
      rows.scales = std::span(scales).first(count * groups);
      rows.offsets = std::span(offsets).first(count * groups);
      pack_panel(packed, panel, rows);
      for (std::size_t at = 0; at < rows.codes.size(); ++at) {
        const std::size_t group = at / inputs * groups + at % inputs / rows.group;
        const float offset = float_from_f16(f16_from(offsets[group] + middle * scales[group]));
        const float code = static_cast<float>(codes[at]) - middle;
        weights.rows.push_back(std::fma(scales[group], code, offset));
        weights.codes.push_back(code);
        if (at % inputs % static_cast<std::size_t>(rows.group) == 0) {
          weights.scales.push_back(scales[group]);
          weights.offsets.push_back(offset);
        }
      }
    }
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

// An element of a product, in double precision.
struct Element64 {
  double value = 0;
  double size = 0;  // sum of the magnitudes of its terms

  // Returns the allowed error of f32 sums.
  double error(std::int64_t inputs) const { return size * 6e-8 * (4 + std::sqrt(inputs)); }
};

Element64 element64(std::span<const float> x, const Weights& weights, std::int64_t row,
                    std::int64_t output) {
  const WeightFormat& format = weights.packed.format;
  const std::int64_t inputs = weights.packed.inputs;
  const float* const w = weights.rows.data() + output * inputs;
  Element64 element;
  for (std::int64_t i = 0; i < inputs; ++i) {
    const double input = x[row * inputs + i];
    element.value += input * w[i];
    // With offsets, a small weight is the difference of two large numbers.
    element.size += std::abs(input) *
                    (format.quantized() && !format.symmetric ? weights.largest : std::abs(w[i]));
  }
  return element;
}

TEST_P(Matmul, AgreesWithDoublePrecision) {
  Team team(2);
  const Size sizes[] = {{1, 1, 1},     {2, 3, 5},    {1, 64, 129},  {5, 7, 33},
                        {7, 1030, 31}, {13, 64, 96}, {26, 300, 70}, {250, 17, 40},
                        {3, 129, 300}, {12, 2, 257}, {5, 7000, 33}, {12, 2100, 64}};
  for (const WeightFormat& format : every_format()) {
    for (const auto& [m, inputs, outputs] : sizes) {
      const Weights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_rows(format.inputs(), m * inputs);
      const std::vector<float> bias = random_floats(outputs);
      const std::vector<float> before = random_floats(m * outputs);
      for (const bool more : {false, true}) {  // with bias and accumulation
        std::vector<float> out = before;
        out.push_back(12345.0f);  // must not change
        matmul(team, Arranged(team, x, weights.packed, MatmulIsa::kVector).rows, weights.packed,
               std::span(out).first(out.size() - 1),
               {.bias = more ? bias.data() : nullptr, .accumulate = more});
        EXPECT_EQ(out.back(), 12345.0f);
        for (std::int64_t r = 0; r < m; ++r) {
          for (std::int64_t o = 0; o < outputs; ++o) {
            Element64 expected = element64(x, weights, r, o);
            if (more) {
              expected.value += double{bias[o]} + before[r * outputs + o];
              expected.size += std::abs(bias[o]) + std::abs(before[r * outputs + o]);
            }
            ASSERT_NEAR(out[r * outputs + o], expected.value, expected.error(inputs))
                << name_of(format) << " " << m << "x" << inputs << "x" << outputs << " row " << r
                << " output " << o;
          }
        }
      }
    }
  }
}

// Products of bf16 are exact, so that the definition in the header can be followed step by step.
TEST_P(Matmul, IsOneChainOfAdditionsInOrder) {
  Team team(2);
  const std::int64_t m = 14, inputs = 777, outputs = 45;
  const Weights weights = random_weights(kBf16, outputs, inputs);
  const std::vector<float> x = random_rows(Element::kBf16, m * inputs);
  const std::vector<float> bias = random_floats(outputs);
  std::vector<float> out = random_floats(m * outputs);
  std::vector<float> expected = out;
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      float sum = 0;
      for (std::int64_t pair = 0; pair < inputs; pair += 2) {
        for (const std::int64_t i : {pair + 1, pair}) {
          sum += i < inputs ? x[r * inputs + i] * weights.rows[o * inputs + i] : 0.0f;
        }
      }
      expected[r * outputs + o] += sum + bias[o];
    }
  }
  matmul(team, Arranged(team, x, weights.packed, MatmulIsa::kVector).rows, weights.packed, out,
         {.bias = bias.data(), .accumulate = true});
  EXPECT_EQ(out, expected);
}

TEST_P(Matmul, GivesARowTheSameBitsInAnyBatch) {
  constexpr std::int64_t kRows = 280;  // more than the rows of one task
  for (const WeightFormat& format : every_format()) {
    if (format.quantized() && format.symmetric != (format.group == 64)) {
      continue;  // tries every kind, group and symmetry, but not all combinations
    }
    for (const auto& [inputs, outputs] : {std::pair{300, 100}, {1100, 64}, {33, 31}}) {
      const Weights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_rows(format.inputs(), kRows * inputs);
      const std::vector<float> bias = random_floats(outputs);
      const MatmulOptions options{.bias = bias.data()};
      const MatmulIsa isa = bf16_dot_pays() ? MatmulIsa::kDot : MatmulIsa::kVector;
      std::vector<float> alone(kRows * outputs);
      Team one(1);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const auto row = std::span(x).subspan(r * inputs, inputs);
        matmul(one, Arranged(one, row, weights.packed, isa).rows, weights.packed,
               std::span(alone).subspan(r * outputs, outputs), options);
      }
      std::vector<std::int64_t> batches = {kRows};
      for (std::int64_t m = 1; m <= 130; m += m < 34 ? 1 : 7) {
        batches.push_back(m);
      }
      batches.push_back(130);
      for (int threads = 1; threads <= 2; ++threads) {
        Team team(threads);
        std::int64_t first = 0;
        for (const std::int64_t m : batches) {
          first = m == kRows ? 0 : (first + 41) % (kRows - m);
          std::vector<float> out(m * outputs);
          const auto rows = std::span(x).subspan(first * inputs, m * inputs);
          matmul(team, Arranged(team, rows, weights.packed, isa).rows, weights.packed, out,
                 options);
          ASSERT_EQ(
              std::memcmp(out.data(), alone.data() + first * outputs, out.size() * sizeof(float)),
              0)
              << name_of(format) << " m " << m << " threads " << threads << " inputs " << inputs;
        }
      }
    }
  }
}

// Also on targets without the instruction, which compute the same with others.
TEST_P(Matmul, HasTheSameBitsWithDotInstructions) {
  if (GetParam() == HWY_AVX3 && !bf16_dot_pays()) {
    GTEST_SKIP() << "this processor has no VDPBF16PS, or a slow one";
  }
  const Size sizes[] = {{1, 1, 1},    {2, 3, 5},     {1, 2100, 129}, {5, 7, 33},    {7, 1030, 31},
                        {12, 96, 64}, {26, 300, 70}, {250, 17, 290}, {5, 7000, 33}, {12, 2100, 64}};
  for (const WeightFormat& format : every_format()) {
    for (const auto& [m, inputs, outputs] : sizes) {
      const Weights weights = random_weights(format, outputs, inputs);
      std::vector<float> x = random_rows(format.inputs(), m * inputs);
      // The products of every third row are denormal, or cancel to denormals.
      for (std::int64_t i = 0; i < std::ssize(x); ++i) {
        x[i] *= std::ldexp(1.0f, i / inputs % 3 == 1 ? -118 - static_cast<int>(i % 16) : 0);
      }
      round_to(format.inputs(), x);
      Team team(2);
      std::vector<float> out(m * outputs), expected(m * outputs);
      matmul(team, Arranged(team, x, weights.packed, MatmulIsa::kVector).rows, weights.packed,
             expected);
      matmul(team, Arranged(team, x, weights.packed, MatmulIsa::kDot).rows, weights.packed, out);
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
          << name_of(format) << " " << m << "x" << inputs << "x" << outputs;
    }
  }
}

TEST_P(Matmul, GathersTheRowsItPacked) {
  for (const WeightFormat& format : every_format()) {
    for (const std::int64_t inputs : {37, 200}) {
      const std::int64_t outputs = 70;
      const Weights weights = random_weights(format, outputs, inputs);
      const std::vector<TokenId> ids = {69, 0, 31, 32, 33, 69, 63, 64};
      std::vector<float> out(ids.size() * inputs);
      gather_rows(weights.packed, ids, out);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(std::memcmp(out.data() + i * inputs, weights.rows.data() + ids[i] * inputs,
                              inputs * sizeof(float)),
                  0)
            << name_of(format) << " id " << ids[i];
      }
    }
  }
}

TEST_P(Matmul, HasNothingToDoForNoRows) {
  Team team(1);
  const Weights weights = random_weights(kBf16, 4, 4);
  matmul(team, std::span<const float>(), weights.packed, {});
}

// Tests tiles with the same matrices: emulated ones, and AMX if available.
class TiledMatmul : public Matmul {
 protected:
  // Follows the definition: one TDPBF16PS after another, over weights or the codes of a group.
  static float tile_chain(std::span<const float> x, std::span<const float> weights) {
    float sum = 0;
    for (std::size_t first = 0; first < x.size(); first += kTileInputs) {
      float halves[2] = {0, 0};
      for (std::size_t i = first; i < std::min(x.size(), first + kTileInputs); ++i) {
        halves[i % 2] += x[i] * weights[i];
      }
      sum += halves[0] + halves[1];
    }
    return sum;
  }

  // Plain C++ vectors multiply and then add.
  static bool is_fused() { return GetParam() != HWY_SCALAR && GetParam() != HWY_EMU128; }
  static float add_product(float a, float b, float sum) {
    return is_fused() ? std::fma(a, b, sum) : a * b + sum;
  }

  static float expected(std::span<const float> x, const Weights& weights, std::size_t output) {
    const WeightFormat& format = weights.packed.format;
    if (!format.quantized()) {
      return tile_chain(x, std::span(weights.rows).subspan(output * x.size(), x.size()));
    }
    const auto codes = std::span(weights.codes).subspan(output * x.size(), x.size());
    const auto group = static_cast<std::size_t>(format.group);
    std::size_t at = output * ((x.size() + group - 1) / group);
    float sum = 0;
    for (std::size_t first = 0; first < x.size(); first += group, ++at) {
      const std::size_t count = std::min(group, x.size() - first);
      const auto inputs = x.subspan(first, count);
      sum = add_product(weights.scales[at], tile_chain(inputs, codes.subspan(first, count)), sum);
      if (!format.symmetric) {
        const float total = std::accumulate(inputs.begin(), inputs.end(), 0.0f);
        sum = add_product(weights.offsets[at], total, sum);
      }
    }
    return sum;
  }

  static std::vector<float> expected(std::span<const float> x, const Weights& weights) {
    const auto inputs = static_cast<std::size_t>(weights.packed.inputs);
    std::vector<float> out;
    for (std::size_t row = 0; row < x.size(); row += inputs) {
      for (std::int64_t o = 0; o < weights.packed.outputs; ++o) {
        out.push_back(expected(x.subspan(row, inputs), weights, static_cast<std::size_t>(o)));
      }
    }
    return out;
  }

  static std::vector<MatmulIsa> isas() {
    std::vector<MatmulIsa> isas = {MatmulIsa::kEmulatedAmx};
    if (amx_promised()) {
      isas.push_back(MatmulIsa::kAmx);
    }
    return isas;
  }

  static std::vector<float> product(std::span<const float> x, const Weights& weights, int threads,
                                    MatmulIsa isa = MatmulIsa::kEmulatedAmx,
                                    const float* bias = nullptr) {
    Team team(threads);
    const std::int64_t m = std::ssize(x) / weights.packed.inputs;
    std::vector<float> out(static_cast<std::size_t>(m * weights.packed.outputs));
    matmul(team, Arranged(team, x, weights.packed, isa).rows, weights.packed, out, {.bias = bias});
    return out;
  }
};

// Returns the bytes of the words and sums of rows for tiles.
std::size_t arranged_bytes(const MatmulRows& rows) {
  const std::int64_t sums =
      rows.group == 0 ? 0 : (rows.inputs + rows.group - 1) / rows.group * rows.blocks.rows;
  return static_cast<std::size_t>(rows.blocks.stored_rows() * rows.row_words() + sums) * 4;
}

std::vector<WeightFormat> tiled_formats() {
  std::vector<WeightFormat> formats = every_format();
  formats.erase(formats.begin());  // f32
  return formats;
}

TEST_P(TiledMatmul, IsWhatTheInstructionIsDefinedToDo) {
  for (const WeightFormat& format : tiled_formats()) {
    for (const auto& [m, inputs, outputs] : {Size{1, 1, 1},
                                             {3, 33, 40},
                                             {17, 64, 31},
                                             {2, 1100, 33},
                                             {40, 540, 64},
                                             {2, 4200, 33},
                                             {2, 540, 290},
                                             {1, 70, 290}}) {
      const Weights weights = random_weights(format, outputs, inputs);
      std::vector<float> x = random_rows(Element::kBf16, m * inputs);
      if (format.quantized() && !format.symmetric) {
        // Numbers of few digits: the order in which inputs of a group are added is not defined, so
        // their sum must be exact.
        std::transform(x.begin(), x.end(), x.begin(),
                       [](float value) { return std::nearbyint(value * 16) / 16; });
      }
      EXPECT_EQ(product(x, weights, 1), expected(x, weights))
          << name_of(format) << " " << m << "x" << inputs << "x" << outputs;
    }
  }
}

// Is as exact as vectors, since codes are multiplied, not weights rounded to bf16.
TEST_P(TiledMatmul, AgreesWithDoublePrecision) {
  for (const WeightFormat& format : tiled_formats()) {
    for (const auto& [m, inputs, outputs] :
         {Size{1, 1, 1}, {2, 3, 5}, {7, 1030, 31}, {26, 300, 70}, {50, 17, 40}, {3, 7000, 33}}) {
      const Weights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_rows(Element::kBf16, m * inputs);
      const std::vector<float> out = product(x, weights, 2);
      for (std::int64_t i = 0; i < m * outputs; ++i) {
        const Element64 expected = element64(x, weights, i / outputs, i % outputs);
        ASSERT_NEAR(out[i], expected.value, expected.error(inputs))
            << name_of(format) << " " << m << "x" << inputs << "x" << outputs << " at " << i;
      }
    }
  }
}

TEST_P(TiledMatmul, GivesARowTheSameBitsInAnyBatch) {
  constexpr std::int64_t kRows = 300;  // more than the rows of one task
  const WeightFormat formats[] = {kBf16,
                                  kTwoOfFour,
                                  {.kind = WeightKind::kW8, .group = 128},
                                  {.kind = WeightKind::kW4, .group = 64, .symmetric = false},
                                  {.kind = WeightKind::kW3, .group = 32, .symmetric = false}};
  for (const WeightFormat& format : formats) {
    for (const auto& [inputs, outputs] : {std::pair{70, 33}, {600, 20}}) {
      const Weights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_rows(Element::kBf16, kRows * inputs);
      for (const MatmulIsa isa : isas()) {
        const std::vector<float> all = product(x, weights, 2, isa);
        std::int64_t first = 0;
        for (const std::int64_t m : {1, 2, 15, 16, 17, 31, 32, 33, 63, 130}) {
          first = (first + 41) % (kRows - m);
          const auto some =
              product(std::span(x).subspan(first * inputs, m * inputs), weights, 1 + m % 2, isa);
          ASSERT_EQ(
              std::memcmp(some.data(), all.data() + first * outputs, some.size() * sizeof(float)),
              0)
              << name_of(format) << " m " << m << " inputs " << inputs;
        }
      }
    }
  }
}

// Few rows are multiplied by vectors and more rows by tiles. Scaled sums, and sums with a bias, are
// denormal here.
TEST_P(TiledMatmul, FlushesDenormalsForOneRowAsForMany) {
  if (!is_fused()) {
    GTEST_SKIP() << "products are flushed before they are added, which tiles do not do";
  }
  constexpr std::int64_t kRows = 6, kInputs = 70, kOutputs = 33;
  std::vector<float> bias = random_floats(kOutputs);
  std::transform(bias.begin(), bias.end(), bias.begin(), [](float b) { return b * 0x1p-126f; });
  for (const WeightFormat& format : tiled_formats()) {
    const Weights weights = random_weights(format, kOutputs, kInputs);
    std::vector<float> x = random_floats(kRows * kInputs);
    std::transform(x.begin(), x.end(), x.begin(), [](float value) { return value * 0x1p-120f; });
    round_to(Element::kBf16, x);
    for (const MatmulIsa isa : isas()) {
      const std::vector<float> all = product(x, weights, 1, isa, bias.data());
      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto alone =
            product(std::span(x).subspan(row * kInputs, kInputs), weights, 1, isa, bias.data());
        ASSERT_EQ(std::memcmp(alone.data(), all.data() + row * kOutputs, kOutputs * sizeof(float)),
                  0)
            << name_of(format) << " row " << row;
      }
    }
  }
}

// Zeros add nothing, so 2:4 weights have the bits of the same weights stored as bf16.
TEST_P(TiledMatmul, TwoOfFourHasTheBitsOfBf16) {
  for (const auto& [m, inputs, outputs] : {Size{1, 64, 33}, {3, 70, 40}, {33, 1100, 65}}) {
    const Weights sparse = random_weights(kTwoOfFour, outputs, inputs);
    Weights dense{.packed = {.format = kBf16, .outputs = outputs, .inputs = inputs}};
    dense.memory = Region::map(dense.packed.bytes()).value();
    dense.packed.data = dense.memory.data();
    for (std::int64_t panel = 0; panel < dense.packed.panels(); ++panel) {
      const std::int64_t first = panel * PackedMatrix::kPanel;
      pack_panel(dense.packed, panel, sparse.rows.data() + first * inputs,
                 static_cast<int>(std::min<std::int64_t>(PackedMatrix::kPanel, outputs - first)));
    }
    const std::vector<float> x = random_rows(Element::kBf16, m * inputs);
    std::vector<MatmulIsa> all = isas();
    all.insert(all.end(), {MatmulIsa::kVector, MatmulIsa::kDot});
    for (const MatmulIsa isa : all) {
      EXPECT_EQ(product(x, sparse, 2, isa), product(x, dense, 2, isa)) << m;
    }
  }
}

// A task of 256 rows keeps the sums of all its panels from one chunk of inputs to the next.
TEST_P(TiledMatmul, CutsInputsIntoChunks) {
  constexpr std::int64_t kRows = 256, kInputs = 2100, kOutputs = 288;
  const Weights weights = random_weights(kBf16, kOutputs, kInputs);
  const std::vector<float> x = random_rows(Element::kBf16, kRows * kInputs);
  for (const MatmulIsa isa : isas()) {
    const std::vector<float> all = product(x, weights, 1, isa);
    for (const std::int64_t row : {0, 101, 255}) {
      const auto alone = product(std::span(x).subspan(row * kInputs, kInputs), weights, 1, isa);
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + row * kOutputs, kOutputs * sizeof(float)), 0)
          << "row " << row;
    }
  }
}

// An output of 8 MiB is written past the caches if it begins at a cache line.
TEST_P(TiledMatmul, StreamsLargeOutputs) {
  constexpr std::int64_t kRows = 70, kInputs = 32, kOutputs = 32768;
  Team team(2);
  for (const WeightFormat& format : {kBf16, WeightFormat{.kind = WeightKind::kW8, .group = 32}}) {
    const Weights weights = random_weights(format, kOutputs, kInputs);
    const std::vector<float> x = random_rows(Element::kBf16, kRows * kInputs);
    const std::vector<float> bias = random_floats(kOutputs);
    const Arranged rows(team, x, weights.packed, MatmulIsa::kEmulatedAmx);
    const Region memory =
        Region::map((2 * kRows * kOutputs + 1) * std::int64_t{sizeof(float)}).value();
    auto* const begin = reinterpret_cast<float*>(memory.data());
    constexpr auto kCount = static_cast<std::size_t>(kRows * kOutputs);
    for (const float* add : {static_cast<const float*>(nullptr), bias.data()}) {
      const std::span streamed(begin, kCount), plain(begin + kCount + 1, kCount);
      matmul(team, rows.rows, weights.packed, streamed, {.bias = add});
      matmul(team, rows.rows, weights.packed, plain, {.bias = add});
      EXPECT_EQ(std::memcmp(streamed.data(), plain.data(), kCount * sizeof(float)), 0)
          << name_of(format);
    }
  }
}

// An activation between two products gives the same rows as separate passes. Tries incomplete
// panels, and groups and blocks of all sizes.
TEST_P(TiledMatmul, GatedTasksEqualSeparatePasses) {
  constexpr std::int64_t kInputs = 40, kOutputs = 33;
  for (const WeightFormat& format : tiled_formats()) {
    if (format.quantized() && format.symmetric != (format.group == 64)) {
      continue;  // tries every kind, group and symmetry, but not all combinations
    }
    for (const auto& [m, ffn, threads, activation] : {std::tuple{9, 1100, 2, Activation::kSilu},
                                                      {13, 40, 1, Activation::kGelu},
                                                      {50, 513, 2, Activation::kGeluTanh},
                                                      {300, 140, 2, Activation::kSilu},
                                                      {600, 70, 1, Activation::kRelu}}) {
      const Weights gate = random_weights(format, ffn, kInputs);
      const Weights up = random_weights(format, ffn, kInputs);
      const Weights down = random_weights(format, kOutputs, ffn);
      const std::vector<float> x = random_rows(Element::kBf16, m * kInputs);
      Team team(threads);
      for (const MatmulIsa isa : isas()) {
        std::vector<float> separate = product(x, gate, threads, isa);
        activate(team, {separate, product(x, up, threads, isa), activation}, Element::kBf16,
                 separate);
        const Arranged expected(team, separate, down.packed, isa);
        const Arranged rows(team, x, gate.packed, isa);
        std::vector<std::byte> made(expected.memory.size(), std::byte{0x55});
        const auto gated = matmul_gated(team, rows.rows,
                                        {&gate.packed, &up.packed, &down.packed, activation}, made);
        ASSERT_TRUE(gated.has_value()) << name_of(format) << " rows " << m;
        EXPECT_EQ(std::memcmp(made.data(), expected.memory.data(), arranged_bytes(*gated)), 0)
            << name_of(format) << " rows " << m << ", isa " << static_cast<int>(isa);
        std::vector<float> out(static_cast<std::size_t>(m * kOutputs));
        matmul(team, *gated, down.packed, out);
        EXPECT_EQ(out, product(separate, down, threads, isa)) << name_of(format) << " rows " << m;
      }
    }
  }
}

// matmul_gated() refuses few rows, too few tasks for the threads, and rows that are not for tiles.
TEST_P(TiledMatmul, RefusesToGateWhereItDoesNotPay) {
  constexpr std::int64_t kInputs = 70;
  const Weights wide = random_weights(kBf16, 1100, kInputs);
  const Weights narrow = random_weights(kBf16, 64, kInputs);
  Team team(2);
  const auto gates = [&](std::int64_t m, const Weights& of, const WeightFormat& down,
                         MatmulIsa isa) {
    const std::vector<float> x = random_rows(Element::kBf16, m * kInputs);
    const Arranged rows(team, x, of.packed, isa);
    const Weights next = random_weights(down, 40, of.packed.outputs);
    std::vector<std::byte> made(
        static_cast<std::size_t>(arranged_rows_bytes(m, of.packed.outputs)));
    return matmul_gated(team, rows.rows, {&of.packed, &of.packed, &next.packed}, made).has_value();
  };
  constexpr MatmulIsa kTiles = MatmulIsa::kEmulatedAmx;
  EXPECT_TRUE(gates(31, wide, kBf16, kTiles));
  EXPECT_TRUE(gates(31, wide, {.kind = WeightKind::kW4, .symmetric = false}, kTiles));
  EXPECT_FALSE(gates(3, wide, kBf16, kTiles));
  EXPECT_FALSE(gates(31, narrow, kBf16, kTiles));
  EXPECT_FALSE(gates(31, wide, kF32, kTiles));
  EXPECT_FALSE(gates(31, wide, {.kind = WeightKind::kW8, .input_bits = 8}, kTiles));
  EXPECT_FALSE(gates(31, wide, kBf16, MatmulIsa::kVector));
  EXPECT_FALSE(gates(31, wide, kBf16, MatmulIsa::kDot));
}

TEST_P(TiledMatmul, AmxAgreesWithItsEmulation) {
  if (!amx_promised()) {
    GTEST_SKIP() << "this processor has no AMX";
  }
  for (const WeightFormat& format : tiled_formats()) {
    for (const auto& [m, inputs, outputs] :
         {Size{1, 1, 1}, {3, 33, 40}, {1, 4200, 64}, {70, 1100, 200}}) {
      const Weights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_rows(Element::kBf16, m * inputs);
      // The processor may add the products of an instruction in another order.
      const std::vector<float> out = product(x, weights, 2, MatmulIsa::kAmx);
      const std::vector<float> emulated = product(x, weights, 2);
      for (std::int64_t i = 0; i < m * outputs; ++i) {
        ASSERT_NEAR(out[i], emulated[i],
                    element64(x, weights, i / outputs, i % outputs).error(inputs))
            << name_of(format) << " " << m << "x" << inputs << "x" << outputs << " at " << i;
      }
    }
  }
}

PROTEAN_ON_EVERY_TARGET(TiledMatmul);
PROTEAN_ON_EVERY_TARGET(Matmul);

}  // namespace
}  // namespace protean::cpu
