#include "control/rolling_window.h"

#include <gtest/gtest.h>

#include <random>

namespace protean {
namespace {

TEST(RollingQuantile, KnowsTheLatestToAFewPercent) {
  RollingQuantile latencies(8 * kNsPerS);
  EXPECT_EQ(latencies.quantile(0, 0.95), 0);
  for (int i = 1; i <= 1000; ++i) {
    latencies.add(kNsPerS, i * kNsPerMs);
  }
  const auto ms = [&](TimeNs now_ns, double q) {
    return static_cast<double>(latencies.quantile(now_ns, q)) / kNsPerMs;
  };
  EXPECT_NEAR(ms(2 * kNsPerS, 0.5), 500, 50);
  EXPECT_NEAR(ms(2 * kNsPerS, 0.95), 950, 95);
  for (int i = 0; i < 1000; ++i) {
    latencies.add(6 * kNsPerS, 20 * kNsPerMs);
  }
  EXPECT_NEAR(ms(6 * kNsPerS, 0.25), 20, 2);
  EXPECT_NEAR(ms(12 * kNsPerS, 0.95), 20, 2) << "the first thousand are forgotten";
  EXPECT_EQ(latencies.quantile(100 * kNsPerS, 0.95), 0);
}

}  // namespace
}  // namespace protean
