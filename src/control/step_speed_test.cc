#include "control/step_speed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cost/step_shape.h"

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
      const StepWork slice = work_of(plan_of(prefill_shape(chunk, computed), 100, 16));
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
  const auto time_s = [&](const StepShape& shape) {
    return predict_us(kAttention, work_of(plan_of(shape, 100, 16), spec)) / 1e6;
  };
  double prompt_s = 0;
  for (int computed = 0; computed < 4096; computed += kStepTokens) {
    prompt_s += time_s(prefill_shape(kStepTokens, computed));
  }
  EXPECT_NEAR(speed.prefill_s(precision, {.prompt = prompt_work(4096)}), prompt_s, 0.01 * prompt_s);
  EXPECT_NEAR(speed.step_s(precision, {.decoding = 8, .context_tokens = 8 * 1000}),
              time_s(decode_shape(8, 1000)), 1e-9);
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

}  // namespace
}  // namespace protean
