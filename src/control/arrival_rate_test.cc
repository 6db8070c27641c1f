#include "control/arrival_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace protean {
namespace {

// A Poisson process whose rate a test sets.
class Arrivals {
 public:
  explicit Arrivals(unsigned seed) : random_(seed) {}

  void until(double until_s, double per_s) {
    for (;;) {
      const double uniform = (static_cast<double>(random_()) + 0.5) / 4294967296.0;
      const double next_s = at_s_ - std::log(uniform) / per_s;
      if (next_s >= until_s) {
        at_s_ = until_s;
        return;
      }
      at_s_ = next_s;
      rate.arrived(now_ns(), 100);
    }
  }
  TimeNs now_ns() const { return static_cast<TimeNs>(at_s_ * kNsPerS); }
  ArrivalRate::Rate now() const { return rate.rate(now_ns()); }

  ArrivalRate rate;

 private:
  std::mt19937 random_;
  double at_s_ = 0;
};

TEST(ArrivalRate, KnowsNothingAtFirst) {
  EXPECT_EQ(ArrivalRate().rate(kNsPerS).per_s, 0);
}

TEST(ArrivalRate, AConstantRateIsKnownTheBetterTheLongerItLasts) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    Arrivals arrivals(seed);
    arrivals.until(10, 8);
    const ArrivalRate::Rate early = arrivals.now();
    arrivals.until(250, 8);
    const ArrivalRate::Rate late = arrivals.now();
    EXPECT_NEAR(late.per_s, 8, 0.8);
    EXPECT_GE(late.most_per_s, late.per_s);
    EXPECT_LT(late.most_per_s - late.per_s, early.most_per_s - early.per_s);
    EXPECT_GT(late.lasts_s, 120);
    EXPECT_NEAR(late.prompt_tokens, 100, 1);
  }
}

TEST(ArrivalRate, ABurstAndItsEndAreSeenWithinASecondOrTwo) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    Arrivals arrivals(seed);
    arrivals.until(100, 2);
    arrivals.until(102, 40);
    EXPECT_GT(arrivals.now().per_s, 25);
    arrivals.until(110, 40);
    arrivals.until(112, 2);
    EXPECT_LT(arrivals.now().per_s, 8);
  }
}

// One request in five seconds leaves many windows empty.
TEST(ArrivalRate, AnEmptyWindowAtALowRateIsNoChange) {
  ArrivalRate rate;
  for (int i = 0; i <= 40; ++i) {
    rate.arrived(i * 5 * kNsPerS, 100);
  }
  EXPECT_NEAR(rate.rate(204 * kNsPerS).per_s, 0.2, 0.02);
}

TEST(ArrivalRate, KnowsHowMuchPromptsDiffer) {
  ArrivalRate rate;
  for (int i = 0; i <= 40; ++i) {
    rate.arrived(i * kNsPerS, i % 2 == 0 ? 100 : 300);
  }
  EXPECT_NEAR(rate.rate(40 * kNsPerS).prompt_tokens, 200, 5);
  EXPECT_NEAR(rate.rate(40 * kNsPerS).prompt_spread, 1.25, 0.02);
}

}  // namespace
}  // namespace protean
