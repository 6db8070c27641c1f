#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "base/repetitions_for_test.h"
#include "device/cpu/dot.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/every_target_for_test.h"
#include "device/cpu/f16.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {
namespace {

// A matrix of random codes, with the codes, scales and offsets that it was made from.
struct CodedWeights {
  Region memory;
  PackedMatrix packed;
  std::vector<int> codes;      // [outputs][inputs], signed
  std::vector<float> scales;   // [outputs][groups]
  std::vector<float> offsets;  // [outputs][groups], weights of the middle code

  std::int64_t groups() const {
    return (packed.inputs + packed.format.group - 1) / packed.format.group;
  }
};

std::string format_name(const WeightFormat& format) {
  return std::to_string(format.bits()) + " bits by " + std::to_string(format.input_bits) +
         ", group " + std::to_string(format.group) + (format.symmetric ? ", symmetric" : "");
}

std::vector<WeightFormat> int8_formats() {
  std::vector<WeightFormat> formats;
  for (const auto& [kind, input_bits] :
       {std::pair(WeightKind::kW8, 8), {WeightKind::kW8, 7}, {WeightKind::kW4, 8}}) {
    for (const int group : {32, 64, 128}) {
      for (const bool symmetric : {true, false}) {
        formats.push_back(
            {.kind = kind, .group = group, .symmetric = symmetric, .input_bits = input_bits});
      }
    }
  }
  return formats;
}

class Int8Matmul : public EveryTarget {
 protected:
  CodedWeights random_weights(const WeightFormat& format, std::int64_t outputs,
                              std::int64_t inputs) {
    CodedWeights weights;
    weights.packed = {.format = format, .outputs = outputs, .inputs = inputs};
    weights.memory = Region::map(weights.packed.bytes()).value();
    weights.packed.data = weights.memory.data();
    const int bits = format.bits();
    const int middle = 1 << (bits - 1);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);
    for (std::int64_t panel = 0; panel < weights.packed.panels(); ++panel) {
      const std::int64_t count =
          std::min<std::int64_t>(PackedMatrix::kPanel, outputs - panel * PackedMatrix::kPanel);
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * inputs));
      std::vector<float> scales(static_cast<std::size_t>(count * weights.groups()));
      std::vector<float> offsets(scales.size());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const int code = random_code(bits, static_cast<std::int64_t>(i) % inputs);
        codes[i] = static_cast<std::uint8_t>(code + middle);
        weights.codes.push_back(code);
      }
      for (std::size_t i = 0; i < scales.size(); ++i) {
        const int zero = format.symmetric ? middle : static_cast<int>(random()() % 8);
        scales[i] = float_from_f16(f16_from(scale(random())));
        offsets[i] = static_cast<float>(-zero) * scales[i];
        weights.scales.push_back(scales[i]);
        weights.offsets.push_back(
            float_from_f16(f16_from(offsets[i] + static_cast<float>(middle) * scales[i])));
      }
      pack_panel(weights.packed, panel,
                 {.bits = bits,
                  .group = format.group,
                  .inputs = inputs,
                  .codes = codes,
                  .scales = scales,
                  .offsets = offsets});
    }
    return weights;
  }

  static std::vector<float> product(Team& team, const RowSource& x, const PackedMatrix& weights,
                                    const MatmulOptions& options, MatmulIsa isa) {
    const std::int64_t m = std::ssize(x.x) / weights.inputs;
    std::vector<std::byte> memory(static_cast<std::size_t>(arranged_rows_bytes(m, weights.inputs)));
    std::vector<float> out(static_cast<std::size_t>(m * weights.outputs));
    matmul(team, quantize_rows(team, x, weights, memory, isa), weights, out, options);
    return out;
  }

  // Returns a product, and checks that vectors, dot instructions and tiles, emulated ones too, give
  // the same bits.
  std::vector<float> product(Team& team, std::span<const float> x, const PackedMatrix& weights,
                             const MatmulOptions& options = {}) {
    std::vector<float> out = product(team, {.x = x}, weights, options, MatmulIsa::kVector);
    for (const MatmulIsa isa : {MatmulIsa::kDot, MatmulIsa::kEmulatedAmx}) {
      if (isa == MatmulIsa::kDot && GetParam() == HWY_AVX3 && !byte_dot_available()) {
        continue;
      }
      const std::vector<float> same = product(team, {.x = x}, weights, options, isa);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (std::memcmp(&out[i], &same[i], sizeof(float)) != 0 &&
            !(std::isnan(out[i]) && std::isnan(same[i]))) {
          ADD_FAILURE() << format_name(weights.format) << " of " << weights.inputs
                        << " inputs, isa " << static_cast<int>(isa) << " at " << i << ": "
                        << same[i] << ", not " << out[i];
          return out;
        }
      }
    }
    return out;
  }
};

// Compares with the definitions in int8_rows.h and matmul.h, computed in double precision.
TEST_P(Int8Matmul, AgreesWithItsDefinition) {
  struct Size {
    std::int64_t m, inputs, outputs;
  };
  const Size sizes[] = {{1, 1, 1},    {2, 3, 5},     {1, 64, 129},  {5, 7, 33},    {7, 1030, 31},
                        {13, 64, 96}, {26, 300, 70}, {250, 17, 40}, {2, 129, 300}, {3, 4200, 33}};
  Team team(2);
  for (const WeightFormat& format : int8_formats()) {
    for (const auto& [m, inputs, outputs] : sizes) {
      const CodedWeights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_floats(m * inputs);
      const std::vector<float> bias = random_floats(outputs);
      const std::vector<float> out = product(team, x, weights.packed, {.bias = bias.data()});
      for (std::int64_t r = 0; r < m; ++r) {
        for (std::int64_t o = 0; o < outputs; ++o) {
          double sum = double{bias[o]};
          double size = std::abs(sum);
          for (std::int64_t g = 0; g < weights.groups(); ++g) {
            const std::int64_t begin = g * format.group;
            const std::int64_t end = std::min<std::int64_t>(inputs, begin + format.group);
            float largest = 0;
            for (std::int64_t i = begin; i < end; ++i) {
              largest = std::max(largest, std::abs(x[r * inputs + i]));
            }
            const float scale = largest / (format.input_bits == 7 ? 63 : 127);
            std::int64_t dot = 0, total = 0;
            for (std::int64_t i = begin; i < end; ++i) {
              const auto q = std::lrint(x[r * inputs + i] * (1.0f / scale));
              dot += q * weights.codes[o * inputs + i];
              total += q;
            }
            const std::int64_t at = o * weights.groups() + g;
            const double product = double{scale} * weights.scales[at] * static_cast<double>(dot);
            const double offset = double{scale} * weights.offsets[at] * static_cast<double>(total);
            sum += product + offset;
            size += std::abs(product) + std::abs(offset);
          }
          ASSERT_NEAR(out[r * outputs + o], sum, size * 1e-6)
              << format_name(format) << " " << m << "x" << inputs << "x" << outputs << " row " << r
              << " output " << o;
        }
      }
    }
  }
}

// Returns the signed code of an input in a row with the largest sums of one sign that a format
// allows.
int most_code(const WeightFormat& format, std::int64_t input, bool negative) {
  const int largest = (1 << (format.bits() - 1)) - (negative ? 0 : 1);
  int code = largest;
  // Two of four w8 codes are the largest, one is the rest of the sum.
  if (format.kind == WeightKind::kW8 && input % 8 >= 4) {
    code = input % 2 == 0 ? kMostCodeSum - 2 * largest : 0;
  }
  return negative ? -code : code;
}

// With the largest codes and activations of both signs, no intermediate sum overflows.
TEST_P(Int8Matmul, DoesNotOverflow) {
  Team team(1);
  for (const WeightFormat& format : int8_formats()) {
    const float largest = format.input_bits == 7 ? 63 : 127;
    for (const bool negative : {false, true}) {
      const std::int64_t inputs = 256, outputs = 40;
      CodedWeights weights = random_weights(format, outputs, inputs);
      const int middle = 1 << (format.bits() - 1);
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(32 * inputs));
      float sum = 0;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const int code = most_code(format, static_cast<std::int64_t>(i) % inputs, negative);
        codes[i] = static_cast<std::uint8_t>(middle + code);
        sum += i < static_cast<std::size_t>(inputs) ? static_cast<float>(code) : 0;
      }
      const std::vector<float> scales(static_cast<std::size_t>(32 * weights.groups()), 1.0f);
      const std::vector<float> offsets(scales.size(), static_cast<float>(-middle));
      pack_panel(weights.packed, 0,
                 {.bits = format.bits(),
                  .group = format.group,
                  .inputs = inputs,
                  .codes = codes,
                  .scales = scales,
                  .offsets = offsets});
      for (const std::int64_t m : {1, 2, 7}) {
        for (const float sign : {1.0f, -1.0f}) {
          const std::vector<float> x(static_cast<std::size_t>(m * inputs), sign * largest);
          const std::vector<float> out = product(team, x, weights.packed);
          for (std::int64_t r = 0; r < m; ++r) {
            ASSERT_EQ(out[r * outputs], sign * largest * sum)
                << format_name(format) << " rows " << m;
          }
        }
      }
    }
  }
}

TEST_P(Int8Matmul, GivesARowTheSameBitsInAnyBatch) {
  constexpr std::int64_t kRows = 280;  // more than the rows of one task
  for (const WeightFormat& format : int8_formats()) {
    for (const auto& [inputs, outputs] : {std::pair{300, 100}, {1100, 64}, {33, 31}}) {
      const CodedWeights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_floats(kRows * inputs);
      std::vector<float> alone;
      Team one(1);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const auto row = product(one, {.x = std::span(x).subspan(r * inputs, inputs)},
                                 weights.packed, {}, MatmulIsa::kVector);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      std::int64_t first = 0;
      for (std::int64_t m = 1; m <= kRows; m += m < 20 ? 1 : 37) {
        first = m == kRows ? 0 : (first + 41) % (kRows - m);
        Team team(1 + static_cast<int>(m % 2));
        const auto out =
            product(team, std::span(x).subspan(first * inputs, m * inputs), weights.packed);
        ASSERT_EQ(
            std::memcmp(out.data(), alone.data() + first * outputs, out.size() * sizeof(float)), 0)
            << format_name(format) << " m " << m << " inputs " << inputs;
      }
    }
  }
}

TEST_P(Int8Matmul, HandlesZeroTinyAndNonFiniteInputs) {
  Team team(1);
  for (const WeightFormat& format : int8_formats()) {
    const CodedWeights weights = random_weights(format, 33, 200);
    std::vector<float> x(3 * 200, 0.0f);
    x[200 + 5] = std::numeric_limits<float>::infinity();
    x[400 + 199] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> out = product(team, x, weights.packed);
    for (int o = 0; o < 33; ++o) {
      EXPECT_EQ(out[o], 0.0f);
      EXPECT_TRUE(std::isnan(out[33 + o]) && std::isnan(out[66 + o])) << format_name(format);
    }
    // Inputs so small that their scale has no inverse become 0, not infinite.
    std::fill(x.begin(), x.end(), std::numeric_limits<float>::denorm_min());
    for (const float value : product(team, x, weights.packed)) {
      EXPECT_TRUE(std::isfinite(value));
    }
  }
}

// Tries all numbers of rows up to more than a pass of tiles has, incomplete chunks and parts, and
// accumulation.
TEST_P(Int8Matmul, TilesGiveTheSameBitsAsVectors) {
  for (const WeightFormat& format : int8_formats()) {
    for (const auto& [inputs, outputs, most] :
         {std::tuple{200, 70, 130}, {33, 33, 70}, {2400, 97, 20}, {4416, 64, 17}}) {
      const CodedWeights weights = random_weights(format, outputs, inputs);
      std::vector<float> x = random_floats(std::int64_t{most} * inputs);
      x[static_cast<std::size_t>(inputs)] = std::numeric_limits<float>::quiet_NaN();  // row 1
      const std::vector<float> bias = random_floats(outputs);
      for (int m = 1; m <= most; m += m < 35 ? (instrumented() ? 3 : 1) : 19) {
        Team team(1 + m % 2);
        const auto count = static_cast<std::size_t>(m * inputs);
        product(team, std::span(x).first(count), weights.packed,
                {.bias = bias.data(), .accumulate = true});
      }
    }
  }
}

// Rows normalised while they are read equal those of a separate pass. Tries incomplete runs,
// several runs, and blocks of all sizes.
TEST_P(Int8Matmul, NormsWhileReadingGiveTheSameRows) {
  Team team(2);
  for (const WeightFormat& format : int8_formats()) {
    for (const auto& [m, inputs] : {std::pair{1, 40}, {5, 1024}, {13, 1100}, {30, 2081}}) {
      const CodedWeights weights = random_weights(format, 40, inputs);
      const std::vector<float> x = random_floats(std::int64_t{m} * inputs);
      const std::vector<float> norm = random_floats(inputs);
      std::vector<float> normed(x.size());
      rms_norm(team, x, {norm, 1e-5f}, Element::kF32, normed);
      for (const auto isa : {MatmulIsa::kVector, MatmulIsa::kDot, MatmulIsa::kEmulatedAmx}) {
        if (isa == MatmulIsa::kDot && GetParam() == HWY_AVX3 && !byte_dot_available()) {
          continue;
        }
        EXPECT_EQ(product(team, {.x = x, .norm = {norm, 1e-5f}}, weights.packed, {}, isa),
                  product(team, {.x = normed}, weights.packed, {}, isa))
            << format_name(format) << " norm of " << inputs;
      }
    }
  }
}

// An activation between two products gives the same bits as separate passes. Tries incomplete
// parts, and groups and blocks of all sizes.
TEST_P(Int8Matmul, GatedTasksEqualSeparatePasses) {
  const std::int64_t inputs = 70, outputs = 40;
  for (const WeightFormat& format : int8_formats()) {
    if (format.symmetric != (format.group == 64)) {
      continue;  // tries every kind, group and symmetry, but not all combinations
    }
    for (const auto& [m, ffn, threads, activation] : {std::tuple{8, 1100, 2, Activation::kSilu},
                                                      {13, 40, 1, Activation::kGelu},
                                                      {30, 513, 2, Activation::kGeluTanh},
                                                      {300, 300, 2, Activation::kSilu},
                                                      {260, 129, 1, Activation::kRelu}}) {
      const CodedWeights gate = random_weights(format, ffn, inputs);
      const CodedWeights up = random_weights(format, ffn, inputs);
      const CodedWeights down = random_weights(format, outputs, ffn);
      const std::vector<float> x = random_floats(std::int64_t{m} * inputs);
      Team team(threads);
      for (const auto isa : {MatmulIsa::kVector, MatmulIsa::kDot, MatmulIsa::kEmulatedAmx}) {
        if (isa == MatmulIsa::kDot && GetParam() == HWY_AVX3 && !byte_dot_available()) {
          continue;
        }
        std::vector<float> of_gate = product(team, {.x = x}, gate.packed, {}, isa);
        const std::vector<float> of_up = product(team, {.x = x}, up.packed, {}, isa);
        activate(team, {of_gate, of_up, activation}, Element::kF32, of_gate);
        std::vector<std::byte> memory(
            static_cast<std::size_t>(arranged_rows_bytes(m, std::max<std::int64_t>(inputs, ffn))));
        std::vector<std::byte> made(memory.size(), std::byte{0x55});
        const Int8Rows rows = quantize_rows(team, {.x = x}, gate.packed, memory, isa);
        const auto gated =
            matmul_gated(team, rows, {&gate.packed, &up.packed, &down.packed, activation}, made);
        ASSERT_TRUE(gated.has_value()) << format_name(format) << " rows " << m;
        std::vector<float> out(static_cast<std::size_t>(m * outputs));
        matmul(team, *gated, down.packed, out);
        EXPECT_EQ(out, product(team, {.x = of_gate}, down.packed, {}, isa))
            << format_name(format) << " rows " << m << ", isa " << static_cast<int>(isa);
      }
    }
  }
}

// matmul_gated() refuses few rows, too few parts for the threads, and rows in different blocks.
TEST_P(Int8Matmul, RefusesToGateWhereItDoesNotPay) {
  const WeightFormat w8{.kind = WeightKind::kW8, .input_bits = 8};
  const CodedWeights wide = random_weights(w8, 1100, 70);
  const CodedWeights narrow = random_weights(w8, 200, 70);
  std::vector<std::byte> memory(static_cast<std::size_t>(arranged_rows_bytes(31, 1100)));
  std::vector<std::byte> made(memory.size());
  Team team(2);
  const auto gates = [&](std::int64_t m, const CodedWeights& of, const WeightFormat& down) {
    const std::vector<float> x = random_floats(m * 70);
    const CodedWeights next = random_weights(down, 40, of.packed.outputs);
    const Int8Rows rows = quantize_rows(team, {.x = x}, of.packed, memory, MatmulIsa::kVector);
    return matmul_gated(team, rows, {&of.packed, &of.packed, &next.packed}, made).has_value();
  };
  EXPECT_TRUE(gates(31, wide, w8));
  EXPECT_FALSE(gates(3, wide, w8));
  EXPECT_FALSE(gates(9, narrow, w8));
  EXPECT_FALSE(gates(31, wide, {.kind = WeightKind::kW8}));
}

TEST_P(Int8Matmul, SeveralProductsEqualSingleOnes) {
  Team team(2);
  const WeightFormat format{.kind = WeightKind::kW8, .symmetric = true, .input_bits = 8};
  for (const std::int64_t m : {1, 3, 300}) {
    const std::vector<float> x = random_floats(m * 150);
    const CodedWeights weights[] = {random_weights(format, 300, 150),
                                    random_weights(format, 31, 150),
                                    random_weights(format, 64, 150)};
    std::vector<std::byte> memory(static_cast<std::size_t>(arranged_rows_bytes(m, 150)));
    const Int8Rows rows = quantize_rows(team, {.x = x}, weights[0].packed, memory);
    std::vector<float> alone[3], together[3];
    std::vector<MatmulTarget> targets;
    for (int i = 0; i < 3; ++i) {
      const PackedMatrix& packed = weights[i].packed;
      alone[i] = random_floats(m * packed.outputs);
      together[i] = alone[i];
      matmul(team, rows, packed, alone[i], {.accumulate = i == 1});
      targets.push_back({&packed, together[i], {.accumulate = i == 1}});
    }
    matmul(team, rows, targets);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(together[i], alone[i]) << "rows " << m << ", matrix " << i;
    }
  }
}

TEST_P(Int8Matmul, AmxAgreesWithItsEmulation) {
  if (!amx_promised()) {
    GTEST_SKIP() << "this processor has no AMX";
  }
  Team team(2);
  for (const WeightFormat& format : int8_formats()) {
    for (const auto& [m, inputs, outputs] :
         {std::tuple{1, 1, 1}, {40, 4200, 64}, {300, 300, 200}}) {
      const CodedWeights weights = random_weights(format, outputs, inputs);
      const std::vector<float> x = random_floats(std::int64_t{m} * inputs);
      EXPECT_EQ(product(team, {.x = x}, weights.packed, {}, MatmulIsa::kAmx),
                product(team, {.x = x}, weights.packed, {}, MatmulIsa::kEmulatedAmx))
          << format_name(format) << " " << m << "x" << inputs << "x" << outputs;
    }
  }
}

PROTEAN_ON_EVERY_TARGET(Int8Matmul);

}  // namespace
}  // namespace protean::cpu
