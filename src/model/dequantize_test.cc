#include "model/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace protean {
namespace {

using Bytes = std::vector<std::uint8_t>;

// The value of an f16 by its definition.
double f16_value(unsigned half) {
  const int sign = (half & 0x8000U) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(half >> 10 & 31U);
  const double mantissa = half & 0x3FFU;
  if (exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25));
}

double f16_at(const std::uint8_t* block, int at) {
  return f16_value(block[at] | block[at + 1] << 8U);
}

int signed_byte(int byte) {
  return byte < 128 ? byte : byte - 256;
}

// llama.cpp's kvalues_iq4nl.
constexpr int kIq4Table[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};

double newer_element(TensorType type, const std::uint8_t* block, int i) {
  switch (type) {
    case TensorType::kQ2_K: {
      // The reference loops over halves, shifts and groups of 16.
      const int shift = i % 128 / 32 * 2;
      const int quant = block[16 + i / 128 * 32 + i % 32] >> shift & 3;
      const int scales = block[i / 16];
      return f16_at(block, 80) * (scales % 16) * quant - f16_at(block, 82) * (scales / 16);
    }
    case TensorType::kQ3_K: {
      // Unpacks the scales as ggml does: four words of four bytes from three.
      std::uint32_t words[4];
      std::memcpy(words, block + 96, 12);
      const std::uint32_t pairs = words[2];
      words[2] = (words[0] >> 4 & 0x0F0F0F0FU) | (pairs >> 4 & 0x03030303U) << 4;
      words[3] = (words[1] >> 4 & 0x0F0F0F0FU) | (pairs >> 6 & 0x03030303U) << 4;
      words[0] = (words[0] & 0x0F0F0F0FU) | (pairs & 0x03030303U) << 4;
      words[1] = (words[1] & 0x0F0F0F0FU) | (pairs >> 2 & 0x03030303U) << 4;
      const int scale = static_cast<int>(words[i / 64] >> (i / 16 % 4 * 8) & 255U) - 32;
      const int quant = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      const bool third = (block[i % 32] & 1 << (i / 32)) != 0;
      return f16_at(block, 108) * scale * (quant - (third ? 0 : 4));
    }
    case TensorType::kIq4Nl: {
      const int pair = block[2 + i % 16];
      return f16_at(block, 0) * kIq4Table[i < 16 ? pair % 16 : pair / 16];
    }
    case TensorType::kIq4Xs: {
      const int group = i / 32;
      const int low = group % 2 == 0 ? block[4 + group / 2] % 16 : block[4 + group / 2] / 16;
      const int high = (block[2] + 256 * block[3]) / (1 << 2 * group) % 4;
      const int pair = block[8 + group * 16 + i % 16];
      return f16_at(block, 0) * (low + 16 * high - 32) *
             kIq4Table[i % 32 < 16 ? pair % 16 : pair / 16];
    }
    case TensorType::kMxfp4: {
      const int pair = block[1 + i % 16];
      const int code = i < 16 ? pair % 16 : pair / 16;
      const int exponent = code / 2 % 4;
      const double size =
          exponent == 0 ? code % 2 * 0.5 : std::ldexp(1.0 + code % 2 * 0.5, exponent - 1);
      return (code >= 8 ? -size : size) * std::pow(2.0, block[0] - 127);
    }
    default:
      return std::nan("");
  }
}

// Returns element i of one block by the format's definition, unlike the loops under test.
double element(TensorType type, const std::uint8_t* block, int i) {
  switch (type) {
    case TensorType::kQ8_0:
      return f16_at(block, 0) * signed_byte(block[2 + i]);
    case TensorType::kQ4_0: {
      const int pair = block[2 + i % 16];
      return f16_at(block, 0) * ((i < 16 ? pair % 16 : pair / 16) - 8);
    }
    case TensorType::kQ4_1: {
      const int pair = block[4 + i % 16];
      return f16_at(block, 0) * (i < 16 ? pair % 16 : pair / 16) + f16_at(block, 2);
    }
    case TensorType::kQ5_0:
    case TensorType::kQ5_1: {
      const int head = type == TensorType::kQ5_0 ? 2 : 4;
      const int pair = block[head + 4 + i % 16];
      const int fifth = block[head + i / 8] >> (i % 8) & 1;
      const int code = (i < 16 ? pair % 16 : pair / 16) + 16 * fifth;
      return type == TensorType::kQ5_0 ? f16_at(block, 0) * (code - 16)
                                       : f16_at(block, 0) * code + f16_at(block, 2);
    }
    case TensorType::kQ4_K:
    case TensorType::kQ5_K: {
      const bool five = type == TensorType::kQ5_K;
      const int group = i / 32;
      const std::uint8_t* packed = block + 4;
      int scale = packed[group % 4] % 64;
      int minimum = packed[4 + group % 4] % 64;
      if (group >= 4) {
        scale = packed[8 + group % 4] % 16 + packed[group % 4] / 64 * 16;
        minimum = packed[8 + group % 4] / 16 + packed[4 + group % 4] / 64 * 16;
      }
      const int pair = block[(five ? 48 : 16) + i / 64 * 32 + i % 32];
      const int fifth = five ? block[16 + i % 32] >> group & 1 : 0;
      const int quant = (group % 2 == 0 ? pair % 16 : pair / 16) + 16 * fifth;
      return f16_at(block, 0) * scale * quant - f16_at(block, 2) * minimum;
    }
    case TensorType::kQ6_K: {
      const int half = i / 128;
      const int quarter = i % 128 / 32;
      const int low_pair = block[half * 64 + i % 64];
      const int low = quarter < 2 ? low_pair % 16 : low_pair / 16;
      const int high = block[128 + half * 32 + i % 32] >> (2 * quarter) & 3;
      return f16_at(block, 208) * signed_byte(block[192 + i / 16]) * (low + 16 * high - 32);
    }
    default:
      return newer_element(type, block, i);
  }
}

bool has_minimum(TensorType type) {
  return type == TensorType::kQ4_1 || type == TensorType::kQ5_1 || type == TensorType::kQ4_K ||
         type == TensorType::kQ5_K || type == TensorType::kQ2_K;
}

// The offset of the scale of a block, which the minimum's follows.
int scale_at(TensorType type) {
  switch (type) {
    case TensorType::kQ6_K:
      return 208;
    case TensorType::kQ2_K:
      return 80;
    case TensorType::kQ3_K:
      return 108;
    default:
      return 0;
  }
}

Bytes random_blocks(TensorType type, int blocks, std::mt19937_64& random) {
  const BlockFormat& format = block_format(type);
  Bytes bytes(static_cast<std::size_t>(blocks * format.bytes));
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(random());
  }
  // Clears the top bit of the exponents, so that scales are finite.
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(format.bytes)) {
    const auto scale = at + static_cast<std::size_t>(scale_at(type));
    bytes[scale + 1] &= type == TensorType::kMxfp4 ? 0xFFU : 0xBFU;
    bytes[at] &= type == TensorType::kMxfp4 ? 0xBFU : 0xFFU;
    if (has_minimum(type)) {
      bytes[scale + 3] &= 0xBFU;
    }
  }
  return bytes;
}

class QuantisedType : public testing::TestWithParam<TensorType> {};

TEST_P(QuantisedType, EveryElementIsWhatTheFormatSays) {
  constexpr int kBlocks = 200;
  const BlockFormat& format = block_format(GetParam());
  std::mt19937_64 random(7);
  const Bytes bytes = random_blocks(GetParam(), kBlocks, random);
  std::vector<float> out(static_cast<std::size_t>(kBlocks * format.elements));
  dequantize(GetParam(), reinterpret_cast<const std::byte*>(bytes.data()),
             static_cast<std::int64_t>(out.size()), out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t elements = static_cast<std::size_t>(format.elements);
    const std::uint8_t* block =
        bytes.data() + i / elements * static_cast<std::size_t>(format.bytes);
    const double want = element(GetParam(), block, static_cast<int>(i % elements));
    // Types with minima add two rounded products of at most 6-bit scales and 5-bit codes; the
    // others round once or twice.
    const int at = scale_at(GetParam());
    const double largest =
        has_minimum(GetParam()) || GetParam() == TensorType::kQ5_0
            ? std::fabs(f16_at(block, at)) * 63 * 31 +
                  (has_minimum(GetParam()) ? std::fabs(f16_at(block, at + 2)) * 63 : 0.0)
            : std::fabs(want);
    ASSERT_NEAR(out[i], want, largest * 0x1.0p-22) << "element " << i;
  }
}

TEST_P(QuantisedType, UnalignedBytesAreRead) {
  const BlockFormat& format = block_format(GetParam());
  std::mt19937_64 random(8);
  const Bytes bytes = random_blocks(GetParam(), 1, random);
  Bytes shifted(bytes.size() + 1);
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  std::vector<float> aligned(static_cast<std::size_t>(format.elements));
  std::vector<float> unaligned(aligned.size());
  dequantize(GetParam(), reinterpret_cast<const std::byte*>(bytes.data()), format.elements,
             aligned.data());
  dequantize(GetParam(), reinterpret_cast<const std::byte*>(shifted.data() + 1), format.elements,
             unaligned.data());
  EXPECT_EQ(aligned, unaligned);
}

// Types whose integers kernels use unchanged.
class CodeType : public testing::TestWithParam<TensorType> {};

TEST_P(CodeType, CodesStandForTheSameElements) {
  const std::optional<QuantFormat> code = code_format(GetParam());
  ASSERT_TRUE(code.has_value());
  constexpr std::int64_t kElements = 2048;
  const BlockFormat& format = block_format(GetParam());
  std::mt19937_64 random(9);
  const Bytes bytes =
      random_blocks(GetParam(), kElements / static_cast<int>(format.elements), random);
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  std::vector<float> want(kElements);
  dequantize(GetParam(), from, kElements, want.data());
  QuantizedMatrix matrix = QuantizedMatrix::sized(*code, 2, kElements / 2);
  read_codes(GetParam(), from, kElements,
             {matrix.codes.data(), matrix.scales.data(), matrix.offsets.data()});
  std::vector<float> out(kElements);
  dequantize_rows(matrix.view(), 0, 2, out.data());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float scale = matrix.scales[i / 32];
    ASSERT_LT(int{matrix.codes[i]}, code->codes());
    ASSERT_NEAR(out[i], want[i],
                0x1.0p-22F * (std::fabs(scale) * 255.0F + std::fabs(matrix.offsets[i / 32])));
    if (code->symmetric) {
      ASSERT_EQ(matrix.offsets[i / 32], -scale * static_cast<float>(code->codes() / 2));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ggml, CodeType,
                         testing::Values(TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                         TensorType::kQ4_K),
                         [](const auto& param) {
                           return std::string(block_format(param.param).name);
                         });

INSTANTIATE_TEST_SUITE_P(Ggml, QuantisedType,
                         testing::Values(TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                         TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K,
                                         TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kQ2_K,
                                         TensorType::kQ3_K, TensorType::kIq4Nl, TensorType::kIq4Xs,
                                         TensorType::kMxfp4),
                         [](const auto& param) {
                           return std::string(block_format(param.param).name);
                         });

TEST(Dequantize, EveryF16IsExact) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
  }
  std::vector<float> out(halves.size());
  dequantize(TensorType::kF16, reinterpret_cast<const std::byte*>(halves.data()), 65536,
             out.data());
  for (unsigned half = 0; half < 65536; ++half) {
    const double want = f16_value(half);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(out[half])) << half;
    } else {
      ASSERT_EQ(out[half], want) << half;
      ASSERT_EQ(std::signbit(out[half]), (half & 0x8000U) != 0) << half;
    }
  }
}

TEST(Dequantize, F32AndBf16KeepTheirBits) {
  const std::vector<float> values = {0.0F, -0.0F, 1.5F, -3.25e-38F, 0x1.0p-149F, 3.0e38F, INFINITY};
  std::vector<float> out(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  dequantize(TensorType::kF32, reinterpret_cast<const std::byte*>(values.data()), count,
             out.data());
  EXPECT_EQ(std::memcmp(out.data(), values.data(), values.size() * sizeof(float)), 0);

  const std::vector<std::uint16_t> halves = {0x0000, 0x8000, 0x3F80, 0xC048,
                                             0x0001, 0x7F7F, 0x7F80};
  dequantize(TensorType::kBf16, reinterpret_cast<const std::byte*>(halves.data()), count,
             out.data());
  const std::vector<float> want = {0.0F, -0.0F, 1.0F, -3.125F, 0x1.0p-133F, 0x1.FEp127F, INFINITY};
  EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0);
}

TEST(Dequantize, NumbersOfGgmlTypesAreKnown) {
  ASSERT_NE(find_ggml_type(12), nullptr);
  EXPECT_EQ(find_ggml_type(12)->readable, TensorType::kQ4_K);
  ASSERT_NE(find_ggml_type(11), nullptr);
  EXPECT_EQ(find_ggml_type(11)->format.name, "Q3_K");
  EXPECT_EQ(find_ggml_type(39)->readable, TensorType::kMxfp4);
  ASSERT_NE(find_ggml_type(21), nullptr);
  EXPECT_EQ(find_ggml_type(21)->format.name, "IQ3_S");
  EXPECT_FALSE(find_ggml_type(21)->readable);
  EXPECT_EQ(find_ggml_type(4), nullptr);
  EXPECT_EQ(find_ggml_type(0xFFFFFFFFU), nullptr);
}

}  // namespace
}  // namespace protean
