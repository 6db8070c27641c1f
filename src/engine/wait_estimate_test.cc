#include "engine/wait_estimate.h"

#include <gtest/gtest.h>

#include <random>

namespace protean {
namespace {

TEST(WaitEstimate, PredictsNothingAtFirstSoThatNoRequestIsRefused) {
  const WaitEstimate estimate(512);
  EXPECT_EQ(estimate.prefill_ns(100000, 10), 0);
  EXPECT_EQ(estimate.first_token_ns({.tokens = 5000, .running = 3, .without_place = 2}, 9), 0);
}

TEST(WaitEstimate, LearnsFixedAndTokenTimeFromMixedSteps) {
  WaitEstimate estimate(512);
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const int tokens = 1 + static_cast<int>(random() % 512);
    const double noise = 0.95 + 0.001 * static_cast<double>(random() % 100);
    estimate.step_done(tokens, static_cast<TimeNs>((2e6 + 1e4 * tokens) * noise));
  }
  // 1024 tokens take two steps; with 12 decodes in each, three.
  EXPECT_NEAR(static_cast<double>(estimate.prefill_ns(1024, 0)), 14.24e6, 0.5e6);
  EXPECT_NEAR(static_cast<double>(estimate.prefill_ns(1024, 12)), 16.6e6, 0.6e6);
  EXPECT_NEAR(static_cast<double>(estimate.token_ns()), 2e6 / 512 + 1e4, 0.5e3);
}

TEST(WaitEstimate, TellsHowManyPromptTokensAStepTakesInATime) {
  WaitEstimate estimate(512);
  EXPECT_EQ(estimate.prompt_tokens_within(kNsPerMs, 0), 512) << "nothing is known yet";
  for (int i = 0; i < 50; ++i) {
    estimate.step_done(400, 42 * kNsPerMs);
  }
  EXPECT_NEAR(estimate.prompt_tokens_within(12 * kNsPerMs, 0), 114, 3) << "nothing else is known";
  for (int i = 0; i < 200; ++i) {
    const int tokens = 1 + i * 37 % 512;
    estimate.step_done(tokens, 2 * kNsPerMs + tokens * kNsPerMs / 10);
  }
  EXPECT_NEAR(estimate.prompt_tokens_within(12 * kNsPerMs, 0), 100, 3);
  EXPECT_NEAR(estimate.prompt_tokens_within(12 * kNsPerMs, 30), 70, 3);
  EXPECT_NEAR(estimate.prompt_tokens_within(12 * kNsPerMs, 180), 200, 6)
      << "as long as the decodes";
  EXPECT_NEAR(estimate.prompt_tokens_within(kNsPerMs, 0), 20, 2);
  EXPECT_EQ(estimate.prompt_tokens_within(kNsPerS, 0), 512);
}

// Steps of one size tell the time of such a step, and nothing about larger ones.
TEST(WaitEstimate, Predicts0ForWhatItHasNotObserved) {
  WaitEstimate estimate(512);
  for (int i = 0; i < 50; ++i) {
    estimate.step_done(8, 3 * kNsPerMs);
  }
  EXPECT_NEAR(static_cast<double>(estimate.prefill_ns(512, 0)), 3e6, 1e4);
  EXPECT_NEAR(static_cast<double>(estimate.prefill_ns(513, 0)), 6e6, 2e4);
}

TEST(WaitEstimate, ATokenNeverTakesMoreThanItsShareOfAStep) {
  WaitEstimate estimate(512);
  for (int i = 0; i < 30; ++i) {  // noise that looks like a steep slope
    estimate.step_done(100, 1 * kNsPerMs);
    estimate.step_done(101, 2 * kNsPerMs);
  }
  EXPECT_LE(estimate.prefill_ns(512, 0), 512 * kNsPerMs / 100 + kNsPerMs);
  for (int i = 0; i < 30; ++i) {  // noise that looks like a falling slope
    estimate.step_done(100, 2 * kNsPerMs);
    estimate.step_done(101, 1 * kNsPerMs);
  }
  EXPECT_GE(estimate.prefill_ns(512, 0), kNsPerMs / 2);
}

TEST(WaitEstimate, FollowsAMachineThatSlowsDown) {
  WaitEstimate estimate(100);
  for (const int slower : {1, 5}) {
    for (int i = 0; i < 300; ++i) {
      const int tokens = 10 + i % 90;
      estimate.step_done(tokens, slower * (1000 + 100 * tokens));
    }
    EXPECT_NEAR(static_cast<double>(estimate.prefill_ns(100, 0)), slower * 11000.0, slower * 300.0);
  }
}

TEST(WaitEstimate, SequencesWithoutAPlaceWaitForPlaces) {
  WaitEstimate estimate(100);
  for (int i = 0; i < 100; ++i) {
    estimate.step_done(1 + i % 100, 1000 + 100 * (1 + i % 100));
  }
  for (int i = 0; i < 100; ++i) {
    estimate.answer_done(8 * kNsPerS);
  }
  // One of 16 running sequences ends every half second.
  const TimeNs wait_ns =
      estimate.first_token_ns({.tokens = 50, .running = 16, .without_place = 3}, 10);
  EXPECT_NEAR(static_cast<double>(wait_ns), 1.5e9, 1e6);
  EXPECT_LT(estimate.first_token_ns({.tokens = 50, .running = 16}, 10), kNsPerMs);
}

}  // namespace
}  // namespace protean
