#include "cost/step_correction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace protean {
namespace {

LayerShares shares_at(Precision precision) {
  LayerShares shares{};
  shares[index_of(precision)] = 1;
  return shares;
}

LayerShares mixture(double bf16, double w8a8, double w4a8) {
  LayerShares shares{};
  shares[index_of(Precision::kBf16)] = bf16;
  shares[index_of(Precision::kW8A8)] = w8a8;
  shares[index_of(Precision::kW4A8)] = w4a8;
  return shares;
}

LayerShares random_mixture(std::mt19937& random) {
  std::uniform_real_distribution<double> part(0, 1);
  const double a = part(random);
  const double b = part(random) * (1 - a);
  return mixture(a, b, 1 - a - b);
}

TEST(StepCorrection, BelievesPredictionsUntilAStepIsDone) {
  const StepCorrection correction;
  for (const Precision precision : kPrecisions) {
    EXPECT_DOUBLE_EQ(correction.factor(precision), 1);
  }
  EXPECT_DOUBLE_EQ(correction.factor(LayerShares{}), 1);
}

TEST(StepCorrection, LearnsAnyLastingSpeed) {
  for (const double truth : {0.01, 0.5, 0.9, 1.0, 1.3, 2.0, 50.0}) {
    StepCorrection correction;
    std::mt19937 random(1);
    std::lognormal_distribution<double> noise(0, 0.05);
    // A factor of 2 takes about 40 steps, a larger one proportionally longer.
    for (int i = 0; i < 300; ++i) {
      correction.step_done(shares_at(Precision::kBf16), 1000, 1000 * truth * noise(random));
    }
    EXPECT_NEAR(correction.factor(Precision::kBf16) / truth, 1, 0.05) << truth;
  }
}

TEST(StepCorrection, NoticesAMachineOfHalfTheSpeedWithin40Steps) {
  StepCorrection correction;
  for (int i = 0; i < 200; ++i) {
    correction.step_done(shares_at(Precision::kW8A8), 700, 700);
  }
  for (int i = 0; i < 40; ++i) {
    correction.step_done(shares_at(Precision::kW8A8), 700, 1400);
  }
  EXPECT_NEAR(correction.factor(Precision::kW8A8), 2, 0.1);
}

TEST(StepCorrection, OneStepHardlyMatters) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> magnitude(-12, 12);
  for (int round = 0; round < 1000; ++round) {
    StepCorrection correction;
    for (int i = 0; i < 20; ++i) {
      correction.step_done(random_mixture(random), 100, 130);
    }
    const LayerShares shares = random_mixture(random);
    const double before = correction.factor(shares);
    correction.step_done(shares, 100, 100 * std::pow(10, magnitude(random)));
    EXPECT_NEAR(correction.factor(shares) / before, 1, 0.026);
  }
}

TEST(StepCorrection, IgnoresTimesThatAreNone) {
  StepCorrection correction;
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    correction.step_done(shares_at(Precision::kBf16), bad, 100);
    correction.step_done(shares_at(Precision::kBf16), 100, bad);
  }
  EXPECT_DOUBLE_EQ(correction.factor(Precision::kBf16), 1);
}

// A fifth of all steps takes up to a thousand times as long.
TEST(StepCorrection, FrequentOutliersMoveItByLessThanATenth) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    StepCorrection correction;
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    double sum = 0;
    for (int i = 0; i < 1000; ++i) {
      const double outlier = uniform(random) < 0.2 ? std::pow(1000, uniform(random)) : 1;
      correction.step_done(shares_at(Precision::kBf16), 1000, 1500 * outlier);
      sum += i < 500 ? 0 : correction.factor(Precision::kBf16);
    }
    EXPECT_NEAR(sum / 500 / 1.5, 1, 0.1);
  }
}

TEST(StepCorrection, TellsPrecisionsApartThatOnlyServedTogether) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    StepCorrection correction;
    std::mt19937 random(seed);
    std::lognormal_distribution<double> factor(0, 0.3);
    std::lognormal_distribution<double> noise(0, 0.02);
    const double bf16 = factor(random);
    const double w8a8 = factor(random);
    const double w4a8 = factor(random);
    for (int i = 0; i < 3000; ++i) {
      const LayerShares shares = random_mixture(random);
      const double truth = std::pow(bf16, shares[index_of(Precision::kBf16)]) *
                           std::pow(w8a8, shares[index_of(Precision::kW8A8)]) *
                           std::pow(w4a8, shares[index_of(Precision::kW4A8)]);
      correction.step_done(shares, 500, 500 * truth * noise(random));
    }
    EXPECT_NEAR(correction.factor(Precision::kBf16) / bf16, 1, 0.1);
    EXPECT_NEAR(correction.factor(Precision::kW8A8) / w8a8, 1, 0.1);
    EXPECT_NEAR(correction.factor(Precision::kW4A8) / w4a8, 1, 0.1);
  }
}

// A slowdown at the precision that serves is expected at the others, but a step at one precision
// never moves another further than itself.
TEST(StepCorrection, ASlowMachineIsExpectedToBeSlowAtEveryPrecision) {
  StepCorrection correction;
  for (int i = 0; i < 500; ++i) {
    correction.step_done(shares_at(Precision::kBf16), 1000, 2000);
  }
  EXPECT_NEAR(correction.factor(Precision::kBf16), 2, 0.01);
  EXPECT_GT(correction.factor(Precision::kW4A8), 1.6);
  EXPECT_LT(correction.factor(Precision::kW4A8), 2);
}

}  // namespace
}  // namespace protean
