#include "model/packed_codes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace protean {
namespace {

// Returns a matrix with groups of every kind of scale and zero point.
QuantizedMatrix random_matrix(const QuantFormat& format, std::int64_t rows, std::int64_t inputs) {
  std::mt19937 random(static_cast<unsigned>(format.bits * 1000 + rows));
  QuantizedMatrix matrix = QuantizedMatrix::sized(format, rows, inputs);
  for (std::uint8_t& code : matrix.codes) {
    code = static_cast<std::uint8_t>(random() % static_cast<unsigned>(format.codes()));
  }
  for (std::size_t i = 0; i < matrix.scales.size(); ++i) {
    matrix.scales[i] = static_cast<float>(random() % 2000 + 1) * 0x1.0p-14F;
    const int zero = format.symmetric
                         ? format.codes() / 2
                         : static_cast<int>(random() % static_cast<unsigned>(format.codes()));
    matrix.offsets[i] = -matrix.scales[i] * static_cast<float>(zero);
  }
  return matrix;
}

WeightQuantization quantization(CodePacking packing, const QuantFormat& format) {
  return {.packing = packing,
          .bits = format.bits,
          .group = format.group,
          .zeros_less_one = packing == CodePacking::kGptq};
}

// Borrows `bytes`.
PackedCodes as_stored(const PackedBytes& bytes, const QuantizedMatrix& matrix,
                      CodePacking packing) {
  return {.how = quantization(packing, matrix.format),
          .rows = matrix.rows,
          .inputs = matrix.inputs,
          .codes = reinterpret_cast<const std::byte*>(bytes.codes.data()),
          .zeros = reinterpret_cast<const std::byte*>(bytes.zeros.data()),
          .scales = reinterpret_cast<const std::byte*>(bytes.scales.data())};
}

struct Example {
  CodePacking packing;
  QuantFormat format;
  std::int64_t rows;
  std::int64_t inputs;
};

class EveryPacking : public testing::TestWithParam<Example> {};

TEST_P(EveryPacking, ComesBackAsItWas) {
  const auto& [packing, format, rows, inputs] = GetParam();
  const QuantizedMatrix matrix = random_matrix(format, rows, inputs);
  const PackedBytes bytes = pack_codes(matrix, quantization(packing, format));
  const PackedCodes stored = as_stored(bytes, matrix, packing);
  const auto found = code_format(stored);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->bits, format.bits);
  EXPECT_EQ(found->group, format.group);
  EXPECT_EQ(found->symmetric, format.symmetric);
  // Reads pieces that begin at any row.
  for (const auto& [first, count] :
       {std::pair<std::int64_t, std::int64_t>{0, rows}, {5, 3}, {rows - 1, 1}, {7, 0}}) {
    QuantizedMatrix part = QuantizedMatrix::sized(format, count, inputs);
    read_codes(stored, first, count, {part.codes.data(), part.scales.data(), part.offsets.data()});
    const auto codes = matrix.codes.begin() + first * inputs;
    EXPECT_TRUE(std::equal(part.codes.begin(), part.codes.end(), codes)) << first;
    const auto groups = first * matrix.groups();
    EXPECT_TRUE(std::equal(part.scales.begin(), part.scales.end(), matrix.scales.begin() + groups));
    EXPECT_TRUE(
        std::equal(part.offsets.begin(), part.offsets.end(), matrix.offsets.begin() + groups));
    std::vector<float> weights(static_cast<std::size_t>(count * inputs));
    std::vector<float> expected(weights.size());
    dequantize(stored, first, count, weights.data());
    dequantize_rows(matrix.view(), first, count, expected.data());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      // scale * (code - zero) is rounded once, scale * code + offset twice.
      ASSERT_NEAR(weights[i], expected[i], 1e-6) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, EveryPacking,
                         testing::Values(Example{CodePacking::kAwq, {4, 32, false}, 24, 96},
                                         Example{CodePacking::kAwq, {4, 128, false}, 16, 200},
                                         Example{CodePacking::kGptq, {4, 64, true}, 16, 128},
                                         Example{CodePacking::kGptq, {4, 32, false}, 8, 72},
                                         Example{CodePacking::kGptq, {8, 128, true}, 12, 132},
                                         Example{CodePacking::kGptq, {3, 32, false}, 32, 160},
                                         Example{CodePacking::kGptq, {3, 128, true}, 64, 128}));

// Expected words follow the writers of these formats and are computed by hand.
TEST(PackedCodes, AwqPutsEvenRowsIntoTheLowHalf) {
  QuantizedMatrix matrix = QuantizedMatrix::sized({4, 32, false}, 8, 32);
  for (std::size_t row = 0; row < 8; ++row) {
    matrix.codes[row * 32 + 2] = static_cast<std::uint8_t>(row);
    matrix.scales[row] = 0.5F;
    matrix.offsets[row] = -0.5F * static_cast<float>(15 - row);
  }
  const PackedBytes bytes =
      pack_codes(matrix, {.packing = CodePacking::kAwq, .bits = 4, .group = 32});
  ASSERT_EQ(bytes.codes.size(), 32U);
  EXPECT_EQ(bytes.codes[2], 0x75316420U);
  EXPECT_EQ(bytes.codes[3], 0U);
  EXPECT_EQ(bytes.zeros, std::vector<std::uint32_t>{0x8ACE9BDFU});
  EXPECT_EQ(bytes.scales, std::vector<std::uint16_t>(8, 0x3800));
}

TEST(PackedCodes, GptqRunsAlongInputsAndStoresZerosLessOne) {
  QuantizedMatrix matrix = QuantizedMatrix::sized({4, 32, false}, 8, 32);
  for (std::size_t input = 0; input < 8; ++input) {
    matrix.codes[3 * 32 + 8 + input] = static_cast<std::uint8_t>(input);  // row 3, second word
  }
  for (std::size_t row = 0; row < 8; ++row) {
    matrix.scales[row] = 1.0F;
    matrix.offsets[row] = -static_cast<float>(row);
  }
  const WeightQuantization how{
      .packing = CodePacking::kGptq, .bits = 4, .group = 32, .zeros_less_one = true};
  const PackedBytes bytes = pack_codes(matrix, how);
  ASSERT_EQ(bytes.codes.size(), 4U * 8U);
  EXPECT_EQ(bytes.codes[1 * 8 + 3], 0x76543210U);
  EXPECT_EQ(bytes.zeros, std::vector<std::uint32_t>{0x6543210FU});  // 0 - 1 is 15 in 4 bits
}

TEST(PackedCodes, ThreeBitCodesCrossWords) {
  QuantizedMatrix matrix = QuantizedMatrix::sized({3, 32, true}, 32, 32);
  matrix.codes[10] = 0b101;  // row 0: bits 30 to 32
  matrix.codes[21] = 0b011;  // bits 63 to 65
  const PackedBytes bytes = pack_codes(
      matrix, {.packing = CodePacking::kGptq, .bits = 3, .group = 32, .zeros_less_one = true});
  EXPECT_EQ(bytes.codes[0], 0x40000000U);
  EXPECT_EQ(bytes.codes[32], 0x80000001U);
  EXPECT_EQ(bytes.codes[64], 0x00000001U);
}

TEST(PackedCodes, AGroupIndexSaysWhichScaleAnInputHas) {
  const QuantFormat format{4, 32, false};
  const QuantizedMatrix matrix = random_matrix(format, 8, 64);
  const PackedBytes bytes = pack_codes(matrix, quantization(CodePacking::kGptq, format));
  PackedCodes stored = as_stored(bytes, matrix, CodePacking::kGptq);
  std::vector<std::int32_t> index(64);
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<std::int32_t>(i % 2);
  }
  stored.group_index = reinterpret_cast<const std::byte*>(index.data());
  EXPECT_FALSE(code_format(stored).has_value());
  std::vector<float> weights(8 * 64);
  dequantize(stored, 0, 8, weights.data());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t group = i / 64 * 2 + i % 2;
    const float scale = matrix.scales[group];
    EXPECT_NEAR(weights[i], scale * static_cast<float>(matrix.codes[i]) + matrix.offsets[group],
                1e-6);
  }
}

TEST(PackedCodes, OtherBitsAndGroupsAreReadAsF32Only) {
  const QuantizedMatrix matrix = random_matrix({4, 128, false}, 8, 64);
  const PackedBytes bytes = pack_codes(matrix, quantization(CodePacking::kGptq, matrix.format));
  PackedCodes stored = as_stored(bytes, matrix, CodePacking::kGptq);
  stored.how.group = 0;  // one scale for the row, the same as a group longer than the row
  stored.inputs = 64;
  EXPECT_EQ(code_format(stored)->group, 64);
  std::vector<float> weights(8 * 64);
  std::vector<float> expected(weights.size());
  dequantize(stored, 0, 8, weights.data());
  dequantize_rows(matrix.view(), 0, 8, expected.data());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ASSERT_NEAR(weights[i], expected[i], 1e-6);
  }
  stored.how.bits = 2;
  EXPECT_FALSE(code_format(stored).has_value());
}

TEST(PackedCodes, SizesThatDoNotFillWordsAreRefused) {
  const WeightQuantization awq{.packing = CodePacking::kAwq};
  EXPECT_TRUE(packed_shape(awq, 8, 7).ok());
  EXPECT_FALSE(packed_shape(awq, 12, 32).ok());
  EXPECT_FALSE(packed_shape({.packing = CodePacking::kAwq, .bits = 8}, 16, 32).ok());
  EXPECT_FALSE(packed_shape({.bits = 3}, 32, 48).ok());
  EXPECT_FALSE(packed_shape({.bits = 4}, 4, 64).ok());
  EXPECT_TRUE(packed_shape({.bits = 8}, 4, 4).ok());
}

}  // namespace
}  // namespace protean
