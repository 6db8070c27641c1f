#include "measure/microbatch_check.h"

#include <gtest/gtest.h>

#include <vector>

namespace protean {
namespace {

StepPrecision all_at(Precision precision) {
  StepPrecision all;
  all.layers[index_of(precision)] = 1;
  return all;
}

// A step of `tokens` of one prompt after `context` others, which takes what `cost` says.
TimedStep timed(const StepCost& cost, std::int64_t tokens, std::int64_t context) {
  const auto count = static_cast<double>(tokens);
  const auto before = static_cast<double>(context);
  TimedStep step{.work = {.tokens = count,
                          .sequences = 1,
                          .context_tokens = count * before + count * (count + 1) / 2,
                          .kv_tokens = before + count},
                 .precision = all_at(Precision::kBf16)};
  step.us = predict_us(cost, step.work, step.precision);
  return step;
}

TEST(MicrobatchCheck, ALineOverTokensIsWrongWhereAttentionCosts) {
  StepCost cost{.context_token_us = 0.2};
  cost.of(Precision::kBf16) = {.step_us = 100, .token_us = 10, .more_token_us = 10};
  std::vector<TimedStep> fitted;
  for (const std::int64_t tokens : {16, 32, 64, 128, 256}) {
    fitted.push_back(timed(cost, tokens, 0));
  }
  std::vector<TimedStep> held_out = {timed(cost, 48, 0), timed(cost, 96, 0), timed(cost, 32, 512),
                                     timed(cost, 1, 512)};
  TimedStep other = timed(cost, 48, 0);
  other.precision = all_at(Precision::kW8);
  held_out.push_back(other);
  const MicrobatchCheck check = check_microbatches(cost, fitted, held_out);
  EXPECT_EQ(check.without_prefix.steps, 2) << "no step at w8 was fitted";
  EXPECT_EQ(check.with_prefix.steps, 1) << "one token is a decode";
  EXPECT_NEAR(check.without_prefix.mean, 0, 1e-9);
  EXPECT_NEAR(check.with_prefix.mean, 0, 1e-9);
  EXPECT_GT(check.without_prefix.mean_by_tokens, 0.02);
  EXPECT_GT(check.with_prefix.mean_by_tokens, 0.5);
}

TEST(MicrobatchCheck, WithoutAttentionTheLineIsRight) {
  StepCost cost;
  cost.of(Precision::kBf16) = {.step_us = 100, .token_us = 10, .more_token_us = 10};
  const std::vector<TimedStep> fitted = {timed(cost, 16, 0), timed(cost, 64, 0)};
  const std::vector<TimedStep> held_out = {timed(cost, 32, 0), timed(cost, 32, 512)};
  const MicrobatchCheck check = check_microbatches(cost, fitted, held_out);
  EXPECT_NEAR(check.without_prefix.mean_by_tokens, 0, 1e-6);
  EXPECT_NEAR(check.with_prefix.mean_by_tokens, 0, 1e-6);
}

}  // namespace
}  // namespace protean
