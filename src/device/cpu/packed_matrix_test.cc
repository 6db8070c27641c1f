#include "device/cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu/f16.h"

namespace protean::cpu {
namespace {

std::int64_t bytes_of(WeightFormat format, std::int64_t outputs, std::int64_t inputs) {
  return PackedMatrix{.format = format, .outputs = outputs, .inputs = inputs}.bytes();
}

TEST(PackedMatrix, HasTheSizeOfItsFormat) {
  using Kind = WeightKind;
  const std::int64_t weights = 8192 * 2048;
  EXPECT_EQ(bytes_of({.kind = Kind::kF32}, 8192, 2048), weights * 4);
  EXPECT_EQ(bytes_of({.kind = Kind::kBf16}, 8192, 2048), weights * 2);
  EXPECT_EQ(bytes_of({.kind = Kind::kTwoOfFour}, 8192, 2048), weights * 2 * 9 / 16);
  const std::int64_t scales = weights / 128 * 2;
  EXPECT_EQ(bytes_of({.kind = Kind::kW8}, 8192, 2048), weights + scales);
  EXPECT_EQ(bytes_of({.kind = Kind::kW4}, 8192, 2048), weights / 2 + scales);
  EXPECT_EQ(bytes_of({.kind = Kind::kW3}, 8192, 2048), weights * 3 / 8 + scales);
  EXPECT_EQ(bytes_of({.kind = Kind::kW4, .symmetric = false}, 8192, 2048),
            weights / 2 + 2 * scales);
  EXPECT_EQ(bytes_of({.kind = Kind::kW3, .group = 32}, 8192, 2048), weights * 3 / 8 + 4 * scales);
  // Padded to 32 outputs and 64 inputs, in two groups.
  EXPECT_EQ(bytes_of({.kind = Kind::kBf16}, 1, 33), 32 * 64 * 2);
  EXPECT_EQ(bytes_of({.kind = Kind::kW4, .group = 32}, 1, 33), 32 * 32 + 2 * 64);
}

TEST(PackedMatrix, FillsTheLastPanelWithZeros) {
  PackedMatrix matrix{.format = {.kind = WeightKind::kBf16}, .outputs = 33, .inputs = 3};
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(matrix.bytes()) / 2, 0xffff);
  matrix.data = reinterpret_cast<std::byte*>(memory.data());
  const float row[] = {1.0f, 2.0f, 3.0f};
  pack_panel(matrix, 1, row, 1);
  constexpr std::size_t kPanelElements = 32 * 32;
  EXPECT_EQ(memory[kPanelElements - 1], 0xffff);  // belongs to another panel
  for (std::size_t i = 0; i < kPanelElements; ++i) {
    // Pairs of inputs are adjacent: 1 and 2; 32 pairs later 3 and a missing input.
    const std::uint16_t want = i == 0 ? 0x3f80 : i == 1 ? 0x4000 : i == 64 ? 0x4040 : 0;
    EXPECT_EQ(memory[kPanelElements + i], want) << i;
  }
}

TEST(PackedMatrix, TwoOfFourKeepsTheTwoLargestOfFour) {
  const std::vector<float> rows = {1, -3, 0.5, 2, 0, 0, 0, 4, 2, 2, 2, 2, -1,  // 13 inputs
                                   0, 0,  0,   0, 7, 0, 6, 5, 0, 9, 0, 0, 0.25};
  const std::vector<float> kept = {0, -3, 0, 2, 0, 0, 0, 4, 2, 2, 0, 0, -1,
                                   0, 0,  0, 0, 7, 0, 6, 0, 0, 9, 0, 0, 0.25};
  PackedMatrix matrix{.format = {.kind = WeightKind::kTwoOfFour}, .outputs = 2, .inputs = 13};
  std::vector<std::uint32_t> memory(static_cast<std::size_t>(matrix.bytes()) / 4, 0xffffffff);
  matrix.data = reinterpret_cast<std::byte*>(memory.data());
  pack_panel(matrix, 0, rows.data(), 2);
  std::vector<float> read(26);
  gather_rows(matrix, std::vector<TokenId>{0, 1}, read);
  EXPECT_EQ(read, kept);
  EXPECT_EQ(memory[0] & 0x3f003f, 0x11000fU) << "low halves 3, 3 and 0; high ones 1, 0 and 1";
  EXPECT_EQ(memory[32], 0xc0404000U) << "2 in the low half; -3, which is added first, in the high";
}

TEST(PackedMatrix, StoresCodesInTheDocumentedLayout) {
  PackedMatrix matrix{.format = {.kind = WeightKind::kW4, .group = 32, .symmetric = false},
                      .outputs = 2,
                      .inputs = 10};
  std::vector<std::byte> memory(static_cast<std::size_t>(matrix.bytes()), std::byte{0xff});
  matrix.data = memory.data();
  const std::vector<std::uint8_t> codes = {8, 9, 10, 11, 12, 13, 14, 15, 0, 1,
                                           7, 7, 7,  7,  7,  7,  7,  7,  7, 7};
  const float scales[] = {0.5f, 0.25f};
  const float offsets[] = {-4.0f, -1.0f};
  pack_panel(matrix, 0,
             QuantizedRows{.bits = 4,
                           .group = 32,
                           .inputs = 10,
                           .codes = codes,
                           .scales = scales,
                           .offsets = offsets});
  const auto half = [&](std::size_t at) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, memory.data() + at, 2);
    return float_from_f16(bits);
  };
  const auto word = [&](std::size_t at) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, memory.data() + 128 + at, 4);
    return bits;
  };
  EXPECT_EQ(half(0), 0.5f);
  EXPECT_EQ(half(2), 0.25f);
  EXPECT_EQ(half(4), 0.0f);
  EXPECT_EQ(half(64), 0.0f);  // -4 + 8 * 0.5
  EXPECT_EQ(half(66), 1.0f);
  EXPECT_EQ(word(0), 0x76543210U);
  EXPECT_EQ(word(4), 0xffffffffU);  // 7 is one below the middle
  EXPECT_EQ(word(8), 0U);
  EXPECT_EQ(word(128), 0x00000098U);
  EXPECT_EQ(word(132), 0x000000ffU);
  EXPECT_EQ(word(256), 0U);
}

TEST(F16, RoundsScalesAwayFromZero) {
  std::minstd_rand random;
  for (std::uint32_t half = 1; half < 0x7bff; ++half) {
    const float at = float_from_f16(static_cast<std::uint16_t>(half));
    const float next = float_from_f16(static_cast<std::uint16_t>(half + 1));
    const float between = at + (next - at) * static_cast<float>(1 + random() % 1000) / 1001.0f;
    ASSERT_EQ(f16_not_below(at), half);
    ASSERT_EQ(f16_not_below(between), half + 1) << between;
    ASSERT_EQ(f16_not_below(-between), 0x8000U | (half + 1)) << "away from zero";
  }
  EXPECT_EQ(f16_not_below(0.0f), 0);
  EXPECT_EQ(float_from_f16(f16_not_below(1e-30f)), 0x1.0p-24f);
  for (const float beyond : {65505.0f, 65530.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(float_from_f16(f16_not_below(beyond)), 65504.0f);
  }
}

// The weights of one row of a w8 panel, and the largest sum of codes of one sign among four.
struct PackedW8 {
  std::vector<float> weights;
  float scale = 0;
  int largest_sum = 0;
};

PackedW8 pack_w8(const std::vector<std::uint8_t>& codes, float scale) {
  const auto inputs = static_cast<std::int64_t>(codes.size());
  PackedMatrix matrix{.format = {.kind = WeightKind::kW8}, .outputs = 1, .inputs = inputs};
  std::vector<std::byte> memory(static_cast<std::size_t>(matrix.bytes()));
  matrix.data = memory.data();
  const float scales[] = {scale}, offsets[] = {-128 * scale};
  pack_panel(matrix, 0,
             QuantizedRows{.inputs = inputs, .codes = codes, .scales = scales, .offsets = offsets});
  PackedW8 packed;
  packed.weights.resize(codes.size());
  const TokenId first[] = {0};
  gather_rows(matrix, first, packed.weights);
  std::uint16_t half = 0;
  std::memcpy(&half, memory.data(), 2);
  packed.scale = float_from_f16(half);
  std::vector<int> above(codes.size() / 8 * 2 + 2), below(above.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<int>(std::lrint(packed.weights[i] / packed.scale));
    (code > 0 ? above : below)[i / 8 * 2 + i / 2 % 2] += std::abs(code);
  }
  packed.largest_sum = std::max(*std::max_element(above.begin(), above.end()),
                                *std::max_element(below.begin(), below.end()));
  return packed;
}

TEST(PackedMatrix, LimitsSumsOfW8Codes) {
  std::minstd_rand random;
  int kept = 0;
  for (int run = 0; run < 3000; ++run) {
    std::vector<std::uint8_t> codes(1 + random() % 128);
    const auto width = static_cast<int>(40 + random() % 90);
    for (std::uint8_t& code : codes) {
      const int value = static_cast<int>(random() % (2 * width)) - width;
      code = static_cast<std::uint8_t>(128 + std::clamp(value, -128, 127));
    }
    // Tries the smallest halves, those of real weights, and the largest, which cannot become
    // larger.
    const float scale = float_from_f16(static_cast<std::uint16_t>(1 + random() % 0x7bff));
    const PackedW8 packed = pack_w8(codes, scale);
    ASSERT_LE(packed.largest_sum, kMostCodeSum);
    ASSERT_GE(packed.scale, scale);
    // Only the scale may change, and a weight by at most half a step, unless no scale is large
    // enough.
    const float error = packed.scale == scale ? 0 : packed.scale / 2;
    kept += packed.scale == scale ? 1 : 0;
    for (std::size_t i = 0; i < codes.size() && scale < 32000; ++i) {
      ASSERT_NEAR(packed.weights[i], scale * static_cast<float>(codes[i] - 128), error * 1.0001f);
    }
  }
  EXPECT_GT(kept, 300);
  EXPECT_LT(kept, 2700);
  const PackedW8 all = pack_w8(std::vector<std::uint8_t>(128, 255), 0.5f);
  EXPECT_EQ(all.largest_sum, 4 * 64);
  EXPECT_NEAR(all.weights[0], 63.5f, 0.25f);
}

}  // namespace
}  // namespace protean::cpu
