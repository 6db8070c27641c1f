#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace protean {
namespace {

TEST(RopeTable, PlainFrequenciesAreAGeometricSeries) {
  const std::vector<double> frequencies = rope_frequencies({.theta = 10000.0}, 8);
  ASSERT_EQ(frequencies.size(), 4U);
  EXPECT_DOUBLE_EQ(frequencies[0], 1.0);
  EXPECT_DOUBLE_EQ(frequencies[1], 0.1);
  EXPECT_DOUBLE_EQ(frequencies[2], 0.01);
  EXPECT_DOUBLE_EQ(frequencies[3], 0.001);
}

TEST(RopeTable, LinearScalingStretchesEveryWave) {
  const std::vector<double> plain = rope_frequencies({}, 16);
  const std::vector<double> scaled =
      rope_frequencies({.scaling = RopeScaling::kLinear, .factor = 4.0}, 16);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4.0);
  }
}

// Uses the published Llama 3.1 settings; states the rule in wavelengths, like its authors.
TEST(RopeTable, Llama3ScalingKeepsShortWavesAndStretchesLongOnes) {
  const RopeSpec spec{.theta = 500000.0, .scaling = RopeScaling::kLlama3, .factor = 8.0};
  const std::vector<double> plain = rope_frequencies({.theta = 500000.0}, 128);
  const std::vector<double> scaled = rope_frequencies(spec, 128);
  int kept = 0;
  int mixed = 0;
  int stretched = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2.0 * std::numbers::pi / plain[i];
    if (wave < 8192.0 / 4.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wave > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8.0);
      ++stretched;
    } else {
      const double smooth = (8192.0 / wave - 1.0) / 3.0;
      EXPECT_NEAR(scaled[i], (1.0 - smooth) * plain[i] / 8.0 + smooth * plain[i], 1e-15);
      ++mixed;
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(mixed, 6);
  EXPECT_EQ(stretched, 29);
}

TEST(RopeTable, DivisorsDivideTheFrequencies) {
  const std::vector<double> divided = rope_frequencies({.divisors = {1.0F, 2.0F, 8.0F, 1.0F}}, 8);
  EXPECT_DOUBLE_EQ(divided[0], 1.0);
  EXPECT_DOUBLE_EQ(divided[1], 0.05);
  EXPECT_DOUBLE_EQ(divided[2], 0.00125);
}

// At position 100000 an angle in f32 would be off by up to 0.004.
TEST(RopeTable, LatePositionsKeepTheirPrecision) {
  const RotaryTable table({}, 8, 100001);
  const cpu::RopeTable view = table.view();
  ASSERT_EQ(view.half, 4);
  ASSERT_EQ(view.cosines.size(), 4U * 100001U);
  EXPECT_FALSE(view.adjacent);
  const std::size_t last = 4U * 100000U;
  for (std::size_t i = 0; i < 4; ++i) {
    const double angle = 100000.0 * std::pow(10.0, -static_cast<double>(i));
    EXPECT_NEAR(view.cosines[last + i], std::cos(angle), 1e-7);
    EXPECT_NEAR(view.sines[last + i], std::sin(angle), 1e-7);
    EXPECT_EQ(view.cosines[i], 1.0F);
    EXPECT_EQ(view.sines[i], 0.0F);
  }
  EXPECT_EQ(table.bytes(), 2 * 4 * 100001 * 4);
}

TEST(RopeTable, PairingIsCarriedToTheKernel) {
  EXPECT_TRUE(RotaryTable({.pairing = RopePairing::kAdjacent}, 8, 1).view().adjacent);
}

}  // namespace
}  // namespace protean
