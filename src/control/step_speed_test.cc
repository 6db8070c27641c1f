#include "control/step_speed.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

constexpr StepWork kDecode = {.tokens = 1, .sequences = 1};

// Stages of 10 ms, of which a step passes `stages`.
StepSpeed pipeline_of(int stages) {
  return {{.fixed_us = 10'000}, 512, {.fixed_us = 10'000.0 * stages}};
}

// Learns from many steps that each end so many milliseconds after their start and the last end.
StepSpeed taught(StepSpeed speed, TimeNs start_ms, TimeNs last_ms) {
  for (int step = 0; step < 300; ++step) {
    speed.step_done(kDecode, {}, {start_ms * kNsPerMs, last_ms * kNsPerMs});
  }
  return speed;
}

double step_ms(const StepSpeed& speed) {
  return 1000 * speed.step_s({}, {.decoding = 1});
}

TEST(StepSpeed, AFullPipelineAndAnEmptyOneTeachTheSame) {
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 40, 40)), 10, 1e-6) << "one step at a time";
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 40, 20)), 10, 1e-6) << "two";
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 40, 10)), 10, 1e-6) << "four";
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 400, 10)), 10, 1e-6) << "behind a long step";
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 40, 4000)), 10, 1e-6) << "after a pause";
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 80, 80)), 20, 0.1) << "a slower machine";
  EXPECT_NEAR(step_ms(taught(pipeline_of(4), 80, 20)), 20, 0.1);
}

TEST(StepSpeed, OneStageIsBusyFromTheEndOfTheStepBefore) {
  EXPECT_NEAR(step_ms(taught(pipeline_of(1), 10, 10)), 10, 1e-6);
  EXPECT_NEAR(step_ms(taught(pipeline_of(1), 10, 500)), 10, 1e-6);
  EXPECT_NEAR(step_ms(taught(pipeline_of(1), 40, 20)), 20, 0.1);
}

// Each stage computes half of the prompt after the other, and the second stage ends last.
TEST(StepSpeed, APromptPassesAllStages) {
  const StepSpeed one({.token_us = 100}, 512);
  const StepSpeed two({.token_us = 50}, 512, {.token_us = 100});
  EXPECT_NEAR(one.prefill_s({}, 400, {}), 0.040, 1e-9);
  EXPECT_NEAR(two.prefill_s({}, 400, {}), 0.020 + 0.010, 1e-9);
  EXPECT_NEAR(two.prefill_s({}, 512 * 10, {}), 10 * 0.0256 + 0.0128, 1e-9);
  EXPECT_EQ(two.prefill_s({}, 0, {}), 0);
}

TEST(StepSpeed, AnotherCostKeepsWhatWasLearned) {
  const StepSpeed slow = taught(pipeline_of(2), 40, 20).at_cost({.fixed_us = 3'000});
  EXPECT_NEAR(step_ms(slow), 6, 0.1);
  EXPECT_NEAR(slow.prefill_s({}, 1, {}), 0.006, 1e-4) << "one stage";
}

}  // namespace
}  // namespace protean
