#include "cost/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "cost/least_squares.h"

namespace protean {
namespace {

StepPrecision all_at(Precision precision) {
  StepPrecision all{.embeddings = default_embeddings_precision(precision)};
  all.layers[index_of(precision)] = 1;
  return all;
}

StepWork prefill(int tokens, int before, bool sampled = true) {
  StepPlan plan;
  plan.tokens.assign(static_cast<std::size_t>(tokens), 0);
  plan.slices = {{.first_position = before, .token_count = tokens}};
  plan.samples.resize(sampled ? 1 : 0);
  return work_of(plan);
}

// Inner chunks of several prompts, which draw no token.
StepWork chunks(int sequences, int tokens) {
  StepPlan plan;
  plan.tokens.assign(static_cast<std::size_t>(sequences * tokens), 0);
  plan.slices.assign(static_cast<std::size_t>(sequences), {.token_count = tokens});
  return work_of(plan);
}

StepWork decode(int sequences, int context) {
  StepPlan plan;
  const auto count = static_cast<std::size_t>(sequences);
  plan.tokens.assign(count, 0);
  plan.slices.assign(count, {.first_position = context, .token_count = 1});
  plan.samples.resize(count);
  return work_of(plan);
}

std::vector<StepWork> varied_steps() {
  std::vector<StepWork> steps;
  for (const int sequences : {1, 2, 4, 6, 8, 12, 16, 20, 32, 40, 64}) {
    steps.push_back(decode(sequences, 50));
    steps.push_back(decode(sequences, 900));
  }
  for (const int tokens : {8, 16, 24, 64, 200, 512}) {
    steps.push_back(prefill(tokens, 0));
    steps.push_back(prefill(tokens, 400, false));
  }
  steps.push_back(chunks(4, 8));
  steps.push_back(chunks(16, 8));
  return steps;
}

StepCost random_cost(std::mt19937& random) {
  std::uniform_real_distribution<double> factor(0.3, 3);
  StepCost cost{.context_token_us = 0.004 * factor(random),
                .sequence_us = 5 * factor(random),
                .kv_token_us = 0.05 * factor(random)};
  for (const Precision precision : {Precision::kBf16, Precision::kW8, Precision::kW4}) {
    cost.of(precision) = {.step_us = 10000 * factor(random),
                          .token_us = 100 * factor(random),
                          .more_token_us = 500 * factor(random),
                          .tile_us = 900 * factor(random),
                          .bend_tokens = precision == Precision::kW8 ? 32.0 : 16.0,
                          .tile_tokens = precision == Precision::kW4 ? 16.0 : 12.0};
    cost.logits_at(default_embeddings_precision(precision)) = {.step_us = 3000 * factor(random),
                                                               .row_us = 40 * factor(random)};
  }
  return cost;
}

std::vector<TimedStep> timed(const StepCost& cost) {
  std::vector<TimedStep> steps;
  for (const Precision precision : {Precision::kBf16, Precision::kW8, Precision::kW4}) {
    for (const StepWork& work : varied_steps()) {
      const StepPrecision layers = all_at(precision);
      steps.push_back({work, layers, predict_us(cost, work, layers)});
    }
  }
  return steps;
}

TEST(FitStepCost, FindsTheCoefficientsThatTimesCameFrom) {
  std::mt19937 random(1);
  for (int round = 0; round < 6; ++round) {
    const StepCost truth = random_cost(random);
    const auto fitted = fit_step_cost(timed(truth));
    ASSERT_TRUE(fitted.ok()) << fitted.error().message;
    const auto expect_near = [&](double found, double known) {
      EXPECT_NEAR(found, known, 1e-5 * known) << "round " << round;
    };
    expect_near(fitted->context_token_us, truth.context_token_us);
    expect_near(fitted->sequence_us, truth.sequence_us);
    expect_near(fitted->kv_token_us, truth.kv_token_us);
    for (const Precision precision : {Precision::kBf16, Precision::kW8}) {
      expect_near(fitted->logits_at(precision).step_us, truth.logits_at(precision).step_us);
      expect_near(fitted->logits_at(precision).row_us, truth.logits_at(precision).row_us);
    }
    for (const Precision precision : {Precision::kBf16, Precision::kW8, Precision::kW4}) {
      expect_near(fitted->of(precision).step_us, truth.of(precision).step_us);
      expect_near(fitted->of(precision).token_us, truth.of(precision).token_us);
      expect_near(fitted->of(precision).more_token_us, truth.of(precision).more_token_us);
      expect_near(fitted->of(precision).tile_us, truth.of(precision).tile_us);
      EXPECT_EQ(fitted->of(precision).bend_tokens, truth.of(precision).bend_tokens);
      EXPECT_EQ(fitted->of(precision).tile_tokens, truth.of(precision).tile_tokens);
    }
    EXPECT_FALSE(covers(*fitted, all_at(Precision::kW3)));
    EXPECT_TRUE(covers(*fitted, all_at(Precision::kW4)));
    StepPrecision other_head = all_at(Precision::kW4);
    other_head.embeddings = Precision::kW8A8;
    EXPECT_FALSE(covers(*fitted, other_head));
  }
}

TEST(FitStepCost, FindsPassesOverTheWeightsAndWhatCachesHold) {
  std::mt19937 random(6);
  StepCost truth = random_cost(random);
  for (LayersCost& of : truth.layers) {
    of.pass_tokens = 256;
  }
  truth.near_kv_tokens = 1024;
  truth.far_kv_token_us = 2 * truth.kv_token_us;
  const auto fitted = fit_step_cost(timed(truth));
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  EXPECT_EQ(fitted->of(Precision::kW8).pass_tokens, 256);
  EXPECT_EQ(fitted->near_kv_tokens, 1024);
  EXPECT_NEAR(fitted->far_kv_token_us, truth.far_kv_token_us, 1e-5 * truth.far_kv_token_us);
  const StepPrecision layers = all_at(Precision::kBf16);
  EXPECT_NEAR(
      predict_us(*fitted, prefill(257, 0), layers) - predict_us(*fitted, prefill(256, 0), layers),
      predict_us(truth, prefill(257, 0), layers) - predict_us(truth, prefill(256, 0), layers),
      1e-3 * truth.of(Precision::kBf16).step_us);
}

// A model of 16 layers, known from its first layer alone and its first two.
TEST(FitStepCost, TellsLayersFromTheRestByStepsThroughFewOfThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 3; ++round) {
    StepCost truth = random_cost(random);
    truth.fixed_us = 300 * round;
    truth.token_us = 2 * (2 - round);
    std::vector<TimedStep> fingerprints;
    for (const TimedStep& step : timed(truth)) {
      for (const int layers : {1, 2}) {
        TimedStep part = in_layers(step, layers, 16);
        part.us = predict_us(truth, part.work, part.precision);
        fingerprints.push_back(part);
      }
    }
    const auto fitted = fit_step_cost(fingerprints);
    ASSERT_TRUE(fitted.ok()) << fitted.error().message;
    EXPECT_NEAR(fitted->fixed_us, truth.fixed_us, 1e-4 * truth.fixed_us + 1e-3);
    EXPECT_NEAR(fitted->token_us, truth.token_us, 1e-4 * truth.token_us + 1e-3);
    EXPECT_LT(prediction_error(*fitted, timed(truth)).worst, 1e-5) << "of the whole model";
  }
}

TEST(FitStepCost, NoiseStaysNoise) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> noise(0.97, 1.03);
  const StepCost truth = random_cost(random);
  std::vector<TimedStep> steps = timed(truth);
  for (TimedStep& step : steps) {
    step.us *= noise(random);
  }
  const auto fitted = fit_step_cost(steps);
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  StepPrecision mixed;  // not among the fitted steps
  mixed.layers[index_of(Precision::kBf16)] = 0.25;
  mixed.layers[index_of(Precision::kW4)] = 0.75;
  std::vector<TimedStep> held_out;
  for (const StepWork& work : {decode(12, 300), prefill(96, 200), decode(48, 100)}) {
    held_out.push_back({work, mixed, predict_us(truth, work, mixed)});
  }
  EXPECT_LT(prediction_error(*fitted, held_out).worst, 0.03);
}

// Coefficients cannot be negative, so a step with more work is never predicted to take less time,
// whatever was measured.
TEST(FitStepCost, PredictionsRiseWithTokensContextAndSequences) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> wild(0, 1);
  for (int round = 0; round < 4; ++round) {
    std::vector<TimedStep> steps = timed(random_cost(random));
    for (TimedStep& step : steps) {
      step.us *= wild(random);
    }
    const auto fitted = fit_step_cost(steps);
    ASSERT_TRUE(fitted.ok()) << fitted.error().message;
    const StepPrecision layers = all_at(Precision::kW8);
    double last_us = 0;
    for (int tokens = 1; tokens < 300; tokens += 7) {
      const double us = predict_us(*fitted, prefill(tokens, 10), layers);
      EXPECT_GE(us, last_us);
      EXPECT_GE(predict_us(*fitted, prefill(tokens, 500), layers), us);
      last_us = us;
    }
    for (int sequences = 1; sequences < 64; ++sequences) {
      EXPECT_LE(predict_us(*fitted, decode(sequences, 100), layers),
                predict_us(*fitted, decode(sequences + 1, 100), layers));
      EXPECT_LE(predict_us(*fitted, decode(sequences, 100), layers),
                predict_us(*fitted, decode(sequences, 101), layers));
    }
  }
}

void expect_refusal(const std::vector<TimedStep>& steps, const std::string& why) {
  const auto fitted = fit_step_cost(steps);
  ASSERT_FALSE(fitted.ok());
  EXPECT_NE(fitted.error().message.find(why), std::string::npos) << fitted.error().message;
}

TEST(FitStepCost, AsksBeforeEachOfManyFitsAndEndsWhenItIsToldTo) {
  std::mt19937 random(7);
  const std::vector<TimedStep> steps = timed(random_cost(random));
  int asked = 0;
  EXPECT_TRUE(fit_step_cost(steps, [&] { return ++asked > 0; }).ok());
  EXPECT_GT(asked, 100);
  for (const int left : {0, 1, asked - 1}) {
    int more = left;
    const auto stopped = fit_step_cost(steps, [&] { return more-- > 0; });
    ASSERT_FALSE(stopped.ok()) << left;
    EXPECT_EQ(stopped.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(more, -1) << "it is asked no more";
  }
}

TEST(FitStepCost, RefusesWhatSettlesNothing) {
  std::mt19937 random(4);
  const std::vector<TimedStep> good = timed(random_cost(random));
  expect_refusal({}, "0 timed steps cannot settle the");
  expect_refusal(std::vector<TimedStep>(good.begin(), good.begin() + 5), "time more");
  expect_refusal(std::vector<TimedStep>(100, good.front()), "cannot tell what");

  std::vector<TimedStep> always_sampled;
  std::vector<TimedStep> never_sampled;
  for (const TimedStep& step : good) {
    (step.work.logit_rows > 0 ? always_sampled : never_sampled).push_back(step);
  }
  expect_refusal(always_sampled, "the LM head");

  for (const double us : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    std::vector<TimedStep> bad = good;
    bad[7].us = us;
    expect_refusal(bad, "times must be above 0");
  }
  std::vector<TimedStep> half = good;
  half[3].precision.layers = {};
  expect_refusal(half, "go through layers");
}

TEST(NonnegativeLeastSquares, LeavesOutWhatWouldBeNegative) {
  // Unbounded, the least squares of this is (2, -1); at 0 the second leaves 1.4 for the first.
  const LinearSystem system{.columns = {{1, 2, 0}, {1, 1, 1}}, .target = {1, 3, -1}};
  EXPECT_FALSE(dependent_column(system).has_value());
  const auto weights = nonnegative_least_squares(system);
  EXPECT_NEAR(weights[0], 1.4, 1e-12);
  EXPECT_EQ(weights[1], 0);
}

// Columns that are much alike take each other's place while the set of those with a weight grows.
TEST(NonnegativeLeastSquares, NoOtherWeightsAreBetter) {
  std::mt19937 random(8);
  std::normal_distribution<double> normal;
  int zeros = 0;
  for (int round = 0; round < 100; ++round) {
    LinearSystem system{.columns = std::vector(12, std::vector<double>(30)),
                        .target = std::vector<double>(30)};
    for (std::size_t row = 0; row < 30; ++row) {
      const double common = normal(random);
      for (std::vector<double>& column : system.columns) {
        column[row] = common + 0.5 * normal(random);
      }
      system.target[row] = common + 0.5 * normal(random);
    }
    const auto weights = nonnegative_least_squares(system);
    std::vector<double> rest = system.target;
    for (std::size_t i = 0; i < 12 * 30; ++i) {
      rest[i % 30] -= weights[i / 30] * system.columns[i / 30][i % 30];
    }
    for (std::size_t i = 0; i < 12; ++i) {
      const std::vector<double>& column = system.columns[i];
      const double gain = std::inner_product(column.begin(), column.end(), rest.begin(), 0.0);
      EXPECT_LT(gain, 1e-9) << "a larger weight reduces no error";
      EXPECT_TRUE(weights[i] == 0 || (weights[i] > 0 && gain > -1e-9)) << "nor does a smaller one";
      zeros += weights[i] == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(zeros, 100);
}

TEST(NonnegativeLeastSquares, NamesADependentColumn) {
  EXPECT_EQ(dependent_column({.columns = {{1, 0}, {0, 1}, {2, -3}}, .target = {}}), 2U);
  EXPECT_EQ(dependent_column({.columns = {{1, 0}, {0, 0}}, .target = {}}), 1U);
}

}  // namespace
}  // namespace protean
