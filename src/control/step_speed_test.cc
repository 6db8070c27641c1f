#include "control/step_speed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cost/step_sizes.h"

namespace protean {
namespace {

// Most of the time of a prompt of some hundred tokens is attention.
constexpr StepCost kCost{
    .fixed_us = 100, .token_us = 10, .context_token_us = 1, .sequence_us = 30, .kv_token_us = 2};
constexpr int kStepTokens = 128;

// Returns the time of the steps that compute prompts of these lengths one after the other, each
// step as full as it can be. Slices draw a token where a prompt ends.
double chunked_s(const std::vector<int>& prompts) {
  double us = 0;
  StepWork step;
  const auto end_step = [&] {
    us += predict_us(kCost, step);
    step = {};
  };
  for (const int prompt : prompts) {
    for (int computed = 0; computed < prompt;) {
      const int chunk = std::min(prompt - computed, kStepTokens - static_cast<int>(step.tokens));
      const StepWork slice = work_of(plan_of(prefill_sizes(chunk, computed), 100, 16));
      step.tokens += slice.tokens;
      step.sequences += 1;
      step.context_tokens += slice.context_tokens;
      step.kv_tokens += slice.kv_least_tokens;
      computed += chunk;
      if (step.tokens == kStepTokens) {
        end_step();
      }
    }
  }
  if (step.tokens > 0) {
    end_step();
  }
  return us / 1e6;
}

TEST(StepSpeed, ALongPromptAttendsToAllItsEarlierChunks) {
  const StepSpeed speed(kCost, kStepTokens);
  EXPECT_NEAR(speed.prefill_s({}, {.prompt = prompt_work(600)}), chunked_s({600}),
              0.03 * chunked_s({600}));
  // Chunks of the second half have the first one as context.
  const double second_s = chunked_s({1024}) - chunked_s({512});
  EXPECT_NEAR(speed.prefill_s({}, {.prompt = prompt_work(512, 512)}), second_s, 0.01 * second_s);
}

TEST(StepSpeed, ShortPromptsOfAStepAttendToThemselvesAlone) {
  const StepSpeed speed(kCost, kStepTokens);
  EXPECT_NEAR(speed.step_s({}, {.prompt = prompt_work(16) * 8}), chunked_s(std::vector<int>(8, 16)),
              1e-9);
  EXPECT_NEAR(speed.prefill_s({}, {.prompt = prompt_work(32) * 40}),
              chunked_s(std::vector<int>(40, 32)), 1e-9);
}

TEST(StepSpeed, APromptOfManyTokensAmongShortOnesCountsAsItIs) {
  const StepSpeed speed(kCost, kStepTokens);
  const PromptWork mixed = prompt_work(16) * 8 + prompt_work(1024);
  std::vector<int> prompts(8, 16);
  prompts.push_back(1024);
  EXPECT_NEAR(speed.prefill_s({}, {.prompt = mixed}), chunked_s(prompts),
              0.05 * chunked_s(prompts));
}

// Three of four layers see 128 positions.
TEST(StepSpeed, LayersWithAWindowSeeNoMoreThanThat) {
  ModelSpec spec;
  spec.layers = 4;
  spec.attention.sliding_window = 128;
  spec.attention.windowed = {true, true, true, false};
  constexpr StepCost kAttention{.context_token_us = 1};
  const StepSpeed speed(kAttention, kStepTokens);
  const StepPrecision precision{.window_tokens = 128, .windowed_share = windowed_share(spec)};
  const auto time_s = [&](const StepSizes& sizes) {
    return predict_us(kAttention, work_of(plan_of(sizes, 100, 16), spec)) / 1e6;
  };
  double prompt_s = 0;
  for (int computed = 0; computed < 4096; computed += kStepTokens) {
    prompt_s += time_s(prefill_sizes(kStepTokens, computed));
  }
  EXPECT_NEAR(speed.prefill_s(precision, {.prompt = prompt_work(4096)}), prompt_s, 0.01 * prompt_s);
  EXPECT_NEAR(speed.step_s(precision, {.decoding = 8, .context_tokens = 8 * 1000}),
              time_s(decode_sizes(8, 1000)), 1e-9);
}

TEST(StepSpeed, APromptIsCutWhereAStepWouldTakeTooLong) {
  const StepSpeed speed(kCost, kStepTokens);
  const Batch batch{.prompt = prompt_work(4000)};
  constexpr double kWithinS = 0.03;
  const int tokens = speed.prompt_tokens_within({}, kWithinS, batch);
  EXPECT_GT(tokens, 1);
  EXPECT_LE(speed.step_s({}, {.prompt = batch.prompt.part(tokens)}), kWithinS);
  EXPECT_GT(speed.step_s({}, {.prompt = batch.prompt.part(tokens + 1)}), kWithinS);
  EXPECT_LT(tokens, speed.prompt_tokens_within({}, kWithinS, {}))
      << "a prompt that is not known has no earlier chunks";
}

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
  EXPECT_NEAR(one.prefill_s({}, {.prompt = prompt_work(400)}), 0.040, 1e-9);
  EXPECT_NEAR(two.prefill_s({}, {.prompt = prompt_work(400)}), 0.020 + 0.010, 1e-9);
  EXPECT_NEAR(two.prefill_s({}, {.prompt = prompt_work(512 * 10)}), 9 * 0.0256 + 0.0512, 1e-9);
  EXPECT_EQ(two.prefill_s({}, {}), 0);
  // Each step reads the weights, so that a short prompt takes longer than on one device.
  const StepSpeed reads({.fixed_us = 15'000, .token_us = 250}, 512,
                        {.fixed_us = 30'000, .token_us = 500});
  EXPECT_NEAR(reads.prefill_s({}, {.prompt = prompt_work(64)}), 0.023 + 0.046, 1e-9);
  EXPECT_NEAR(reads.prefill_s({}, {.prompt = prompt_work(16)}), 0.038, 1e-9) << "not divided";
  // Half of the sequences decode in each of the steps.
  EXPECT_NEAR(reads.prefill_s({}, {.decoding = 8, .context_tokens = 0, .prompt = prompt_work(64)}),
              0.024 + 0.048, 1e-9);
}

TEST(StepSpeed, AnotherCostKeepsWhatWasLearned) {
  const StepSpeed slow = taught(pipeline_of(2), 40, 20).at_cost({.fixed_us = 3'000});
  EXPECT_NEAR(step_ms(slow), 6, 0.1);
  EXPECT_NEAR(slow.prefill_s({}, {.prompt = prompt_work(1)}), 0.006, 1e-4) << "one stage";
}

}  // namespace
}  // namespace protean
