#include "device/cpu/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "device/cpu/bf16.h"

namespace protean::cpu {
namespace {

// Returns c plus the product of row 0 of A and column 0 of B. All other elements are zero.
template <class Tiles>
float dot(Tiles tiles, const std::vector<float>& a, const std::vector<float>& b, float c) {
  alignas(64) std::uint16_t left[16 * 32] = {};
  alignas(64) std::uint16_t right[16 * 32] = {};
  alignas(64) float sums[16 * 16] = {c};
  for (std::size_t i = 0; i < a.size(); ++i) {
    left[i] = bf16_from(a[i]);
    right[i / 2 * 32 + i % 2] = bf16_from(b[i]);
  }
  tiles.configure();
  tiles.template load<0>(sums, kTileBytes);
  tiles.template load<4>(left, kTileBytes);
  tiles.template load<6>(right, kTileBytes);
  tiles.template multiply<0, 4, 6>();
  tiles.template store<0>(sums, kTileBytes);
  tiles.release();
  for (int i = 1; i < 256; ++i) {
    EXPECT_EQ(sums[i], 0.0f) << i;
  }
  return sums[0];
}

// Checks sums that have the same bits in any order of additions.
template <class Tiles>
void expect_exact_sums(const Tiles& tiles) {
  EXPECT_EQ(dot(tiles, {1, 2, 3}, {4, 5, 6}, 0.5f), 32.5f);
  // Denormal operands and results are zeros.
  EXPECT_EQ(dot(tiles, {0x1p-130f}, {0x1p100f}, 0), 0.0f);
  EXPECT_EQ(dot(tiles, {0x1p-70f}, {0x1p-60f}, 0), 0.0f);
  EXPECT_EQ(dot(tiles, {0}, {0}, 0x1p-130f), 0.0f);
}

TEST(Tiles, EmulationDoesWhatTheManualSays) {
  const EmulatedTiles tiles{};
  expect_exact_sums(tiles);
  // Even inputs, odd inputs, both, then C. In any other order the result would differ.
  EXPECT_EQ(dot(tiles, {1, 0x1p24f, 0, -0x1p24f}, {1, 1, 1, 1}, 0), 1.0f);
  EXPECT_EQ(dot(tiles, {0x1p24f, 0, 1, 0, -0x1p24f}, {1, 1, 1, 1, 1}, 0), 0.0f);
  EXPECT_EQ(dot(tiles, {0x1p24f, -0x1p24f}, {1, 1}, 1), 1.0f);
  EXPECT_EQ(dot(tiles, {0x1p24f}, {1}, 1), 0x1p24f);
  EXPECT_EQ(dot(tiles, {0x1p24f}, {1}, 3), 0x1p24f + 4);  // a tie rounds to even
}

// Compares numbers of all sizes, within the rounding errors of another order of additions.
TEST(Tiles, TheProcessorAgreesWithTheEmulation) {
#if HWY_ARCH_X86_64
  if (amx_promised()) {
    expect_exact_sums(AmxTiles());
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 1000; ++i) {
      std::vector<float> a(kTileInputs), b(kTileInputs);
      const float c = normal(random);
      float size = std::abs(c);
      for (std::size_t k = 0; k < a.size(); ++k) {
        a[k] = normal(random);
        b[k] = normal(random);
        size += std::abs(a[k] * b[k]);
      }
      EXPECT_NEAR(dot(AmxTiles(), a, b, c), dot(EmulatedTiles(), a, b, c), size * 0x1p-21f);
    }
    return;
  }
#endif
  GTEST_SKIP() << "this processor has no AMX";
}

// If products were wrong, the program would silently not use AMX.
TEST(Tiles, AProcessorThatPromisesAmxHasIt) {
  EXPECT_EQ(amx_available(), amx_promised());
}

// Compares products of bytes of both signs, including -128, on existing sums, with a plain loop.
template <class Tiles>
void expect_integer_arithmetic(Tiles tiles) {
  alignas(64) std::int8_t left[16 * 64];
  alignas(64) std::int8_t right[16 * 64];
  alignas(64) std::int32_t sums[16 * 16];
  for (int i = 0; i < 16 * 64; ++i) {
    left[i] = static_cast<std::int8_t>(i * 37 + i / 64);
    right[i] = static_cast<std::int8_t>(i * 53 - 128);
  }
  for (int i = 0; i < 256; ++i) {
    sums[i] = i * 1000003;
  }
  tiles.configure();
  tiles.template load<1>(sums, kTileBytes);
  tiles.template load<5>(left, kTileBytes);
  tiles.template load<7>(right, kTileBytes);
  tiles.template multiply_int8<1, 5, 7>();
  tiles.template store<1>(sums, kTileBytes);
  tiles.release();
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      int sum = (row * 16 + column) * 1000003;
      for (int i = 0; i < 64; ++i) {
        sum += left[row * 64 + i] * right[i / 4 * 64 + column * 4 + i % 4];
      }
      ASSERT_EQ(sums[row * 16 + column], sum) << row << " " << column;
    }
  }
}

TEST(Tiles, EmulationMultipliesIntegers) {
  expect_integer_arithmetic(EmulatedTiles());
}

TEST(Tiles, TheProcessorMultipliesIntegers) {
#if HWY_ARCH_X86_64
  if (amx_promised()) {
    return expect_integer_arithmetic(AmxTiles());
  }
#endif
  GTEST_SKIP() << "this processor has no AMX";
}

// Tiles are loaded and stored correctly for all distances between rows.
TEST(Tiles, AreLoadedAndStoredRowByRow) {
  std::vector<std::uint8_t> from(16 * 100), to(16 * 80, 0xee);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::uint8_t>(i * 7);
  }
  EmulatedTiles tiles;
  tiles.configure();
  tiles.load<3>(from.data(), 100);
  tiles.zero<2>();
  tiles.store<3>(to.data(), 80);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t i = 0; i < 80; ++i) {
      EXPECT_EQ(to[row * 80 + i], i < 64 ? from[row * 100 + i] : 0xee);
    }
  }
}

}  // namespace
}  // namespace protean::cpu
