#include "cost/fingerprint.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(Fingerprint, TwoAnswersTellTheFirstTokenFromTheNext) {
  const Latency latency = latency_of({.tokens = 4, .us = 900}, {.tokens = 12, .us = 1300});
  EXPECT_DOUBLE_EQ(latency.tpot_us, 50);
  EXPECT_DOUBLE_EQ(latency.ttft_us, 700);
  const Latency swapped = latency_of({.tokens = 12, .us = 1300}, {.tokens = 4, .us = 900});
  EXPECT_DOUBLE_EQ(swapped.tpot_us, latency.tpot_us);
  EXPECT_DOUBLE_EQ(swapped.ttft_us, latency.ttft_us);
}

TEST(Fingerprint, LayersAreRepeatedAndTheRestIsNot) {
  EXPECT_DOUBLE_EQ(of_whole_model(130, 150, {.model = 1}), 130);
  EXPECT_DOUBLE_EQ(of_whole_model(130, 150, {.model = 2}), 150);
  EXPECT_DOUBLE_EQ(of_whole_model(130, 150, {.model = 16}), 110 + 16 * 20);
  EXPECT_DOUBLE_EQ(of_whole_model(130, 210, {.model = 16, .other = 5}), 110 + 16 * 20);
  EXPECT_DOUBLE_EQ(of_whole_model(130, 130, {.model = 1, .other = 1}), 130) << "of one layer";
  EXPECT_DOUBLE_EQ(of_whole_model(150, 130, {.model = 16}), 140) << "layers cost nothing, not less";
  const Latency latency = of_whole_model(Latency{.ttft_us = 100, .tpot_us = 10},
                                         Latency{.ttft_us = 150, .tpot_us = 12}, {.model = 10});
  EXPECT_DOUBLE_EQ(latency.ttft_us, 50 + 10 * 50);
  EXPECT_DOUBLE_EQ(latency.tpot_us, 8 + 10 * 2);
}

}  // namespace
}  // namespace protean
