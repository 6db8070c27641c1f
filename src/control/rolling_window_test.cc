#include "control/rolling_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "control/trend.h"

namespace protean {
namespace {

// The same from the whole history.
struct History {
  double mean(TimeNs now_ns, TimeNs length_ns) const {
    double integral = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const TimeNs until_ns = i + 1 < values.size() ? values[i + 1].first : now_ns;
      const TimeNs from_ns = std::max(values[i].first, now_ns - length_ns);
      integral += values[i].second * static_cast<double>(std::max<TimeNs>(until_ns - from_ns, 0));
    }
    return integral / static_cast<double>(length_ns);
  }
  double max(TimeNs now_ns, TimeNs length_ns) const {
    double found = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i + 1 == values.size() || values[i + 1].first > now_ns - length_ns) {
        found = std::max(found, values[i].second);
      }
    }
    return found;
  }
  std::deque<std::pair<TimeNs, double>> values;
};

TEST(RollingWindow, IsTheMeanAndMaximumOfItsTime) {
  constexpr TimeNs kLength = 16 * kNsPerMs;
  std::mt19937 random(3);
  for (const TimeNs longest_gap : {kNsPerMs / 10, 3 * kNsPerMs, 40 * kNsPerMs}) {
    RollingWindow window(kLength);
    History history;
    TimeNs now_ns = 0;
    for (int i = 0; i < 1000; ++i) {
      now_ns += static_cast<TimeNs>(random()) % longest_gap;
      const double value = random() % 4 == 0 ? 1.0 : 0.0;
      window.set(now_ns, value);
      history.values.emplace_back(now_ns, value);
      while (history.values.size() > 400) {
        history.values.pop_front();
      }
      const TimeNs asked_ns = now_ns + static_cast<TimeNs>(random()) % longest_gap;
      // A slice of 16 is approximated: off by at most a quarter of itself.
      ASSERT_NEAR(window.mean(asked_ns), history.mean(asked_ns, kLength), 0.25 / 16 + 1e-9);
      ASSERT_GE(window.max(asked_ns), history.max(asked_ns, kLength));
      ASSERT_LE(window.max(asked_ns), history.max(asked_ns, kLength + kLength / 16));
    }
  }
}

TEST(RollingWindow, BeforeTheFirstValueItWasZero) {
  RollingWindow window(kNsPerS);
  EXPECT_EQ(window.mean(5 * kNsPerS), 0);
  window.set(100 * kNsPerS, 1);
  EXPECT_EQ(window.mean(100 * kNsPerS), 0);
  EXPECT_NEAR(window.mean(100 * kNsPerS + kNsPerS / 4), 0.25, 1e-9);
  EXPECT_NEAR(window.mean(500 * kNsPerS), 1, 1e-9);
}

TEST(RollingCount, ForgetsAfterItsLength) {
  RollingCount count(16 * kNsPerMs);
  for (TimeNs at_ms = 0; at_ms < 100; ++at_ms) {
    count.add(at_ms * kNsPerMs, 2);
  }
  EXPECT_NEAR(count.total(99 * kNsPerMs), 34, 2.1);
  EXPECT_NEAR(count.per_s(99 * kNsPerMs), 2000, 150);
  EXPECT_NEAR(count.total(107 * kNsPerMs), 18, 2.1);
  EXPECT_EQ(count.total(200 * kNsPerMs), 0);
}

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

TEST(Trend, FollowsARampAndForgetsIt) {
  Trend trend(kNsPerS);
  TimeNs now_ns = 0;
  for (; now_ns < 10 * kNsPerS; now_ns += 30 * kNsPerMs) {
    trend.add(now_ns, 5.0 * static_cast<double>(now_ns) / kNsPerS);
  }
  EXPECT_NEAR(trend.after(2 * kNsPerS), 60, 1.5);
  for (; now_ns < 20 * kNsPerS; now_ns += 30 * kNsPerMs) {
    trend.add(now_ns, 50);
  }
  EXPECT_NEAR(trend.after(2 * kNsPerS), 50, 1);
}

}  // namespace
}  // namespace protean
