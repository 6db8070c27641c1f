#include "control/predict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace protean {
namespace {

// bf16 steps read weights for 7 ms and take 50 us for each token; w8 halves the former.
StepCost costs() {
  StepCost cost{.fixed_us = 1000, .token_us = 50};
  cost.of(Precision::kBf16).step_us = 7000;
  cost.of(Precision::kW8).step_us = 3500;
  return cost;
}

FormTraits form(Precision precision, double kv_blocks) {
  FormTraits traits{.kv_blocks = kv_blocks};
  traits.precision.layers[index_of(precision)] = 1;
  return traits;
}

Course staying(const FormTraits& form) {
  return {.from = form, .to = form};
}

Load load_at(double per_s) {
  return {.arrivals = {.per_s = per_s, .lasts_s = 60, .later_per_s = per_s, .prompt_tokens = 256},
          .answer_tokens = 128,
          .running_prompt_tokens = 256,
          .running_drawn_tokens = 76};
}

struct Predict : testing::Test {
  Prediction of(const Course& course, const Load& load) const {
    return predict(speed, serving, course, load);
  }

  const StepSpeed speed{costs(), 512};
  const Serving serving{.most_sequences = 64};
  const FormTraits full = form(Precision::kBf16, 500);
};

TEST_F(Predict, ALoadBelowTheCapacityIsServedInTime) {
  const double capacity = capacity_of(speed, serving, full, load_at(1)).per_s;
  EXPECT_GT(capacity, 12);
  EXPECT_LT(capacity, 25);
  EXPECT_LT(of(staying(full), load_at(0.5 * capacity)).late, 0.1);
  EXPECT_NEAR(of(staying(full), load_at(0.5 * capacity)).answer_tokens_per_s, 64 * capacity,
              7 * capacity);
}

// Requests wait a third of a second longer each second, so all but those of the first seconds are
// late.
TEST_F(Predict, AnOverloadMakesNearlyAllLate) {
  const double capacity = capacity_of(speed, serving, full, load_at(1)).per_s;
  const Prediction overload = of(staying(full), load_at(1.5 * capacity));
  EXPECT_GT(overload.late, 0.85 * 60 * 1.5 * capacity);
  EXPECT_LT(overload.late, 60 * 1.5 * capacity);
  EXPECT_NEAR(overload.backlog, 60 * 0.5 * capacity, 6 * capacity);
}

TEST_F(Predict, AShortBurstIsNotExpectedToLast) {
  Load load = load_at(100);
  const double lasting = of(staying(full), load).late;
  load.arrivals.lasts_s = 1;
  load.arrivals.later_per_s = 2;
  EXPECT_LT(of(staying(full), load).late, 110);
  EXPECT_GT(lasting, 4000);
}

TEST_F(Predict, MoreLoadNeverMakesFewerLate) {
  double before = 0;
  for (double per_s = 0; per_s < 60; per_s += 1.5) {
    const double late = of(staying(full), load_at(per_s)).late;
    EXPECT_GE(late, before - 1e-6) << per_s;
    before = late;
  }
  before = 0;
  for (double waiting = 0; waiting < 200; waiting += 10) {
    Load load = load_at(5);
    load.waiting = prompt_work(256) * waiting;
    const double late = of(staying(full), load).late;
    EXPECT_GE(late, before - 0.5) << waiting;
    before = late;
  }
}

TEST_F(Predict, MoreKvNeverMakesMoreLate) {
  double before = 1e9;
  for (double blocks = 50; blocks < 2000; blocks *= 1.3) {
    const double late = of(staying(form(Precision::kBf16, blocks)), load_at(18)).late;
    EXPECT_LE(late, before + 0.5) << blocks;
    before = late;
  }
}

TEST_F(Predict, FasterStepsMakeFewerLate) {
  EXPECT_LT(of(staying(form(Precision::kW8, 500)), load_at(22)).late,
            of(staying(full), load_at(22)).late);
}

TEST_F(Predict, AMorphHelpsFromWhenItIsDone) {
  const Load load = load_at(25);
  double before = 0;
  for (const double seconds : {0.0, 5.0, 20.0, 50.0}) {
    const Course course{.from = full, .to = form(Precision::kW8, 1000), .seconds = seconds};
    const double late = of(course, load).late;
    EXPECT_GE(late, before) << seconds;
    before = late;
  }
  EXPECT_LE(before, of(staying(full), load).late);
}

TEST_F(Predict, ABurstOnAnIdleReplicaIsServedAtTheSpeedOfPrompts) {
  Load load = load_at(0);
  load.waiting = prompt_work(256) * 20;
  EXPECT_LT(of(staying(full), load).late, 1) << "20 prompts take 0.4 s";
  load.waiting = prompt_work(4000) * 20;
  EXPECT_GT(of(staying(form(Precision::kBf16, 8000)), load).late, 10) << "and these 6 s";
}

TEST_F(Predict, QualityIsLostByTheTokensThatAreDrawn) {
  FormTraits low = form(Precision::kW8, 1000);
  low.kl_nats = 0.01;
  const Prediction prediction = of(staying(low), load_at(10));
  EXPECT_NEAR(prediction.kl_nats, 0.01 * 60 * 10 * 128, 60);
  EXPECT_EQ(of(staying(full), load_at(10)).kl_nats, 0);
}

TEST_F(Predict, LostPrefixHitsAreWork) {
  Load load = load_at(30);
  load.hit_share = 0.9;
  load.arrivals.prompt_tokens = 1000;
  load.running_prompt_tokens = 100;
  load.answer_tokens = 4;
  load.running_drawn_tokens = 2;
  const FormTraits roomy = form(Precision::kBf16, 20000);
  Course course = staying(roomy);
  const double kept = of(course, load).late;
  course.seconds = 0.01;  // a morph makes cached blocks useless
  EXPECT_GT(of(course, load).late, kept + 10);
}

TEST_F(Predict, ATargetForTokensCountsSlowDecoding) {
  Serving strict = serving;
  strict.tpot_s = 0.005;
  EXPECT_GT(predict(speed, strict, staying(full), load_at(5)).late, 200);
  EXPECT_LT(predict(speed, strict, staying(form(Precision::kW8, 1000)), load_at(1)).late, 5);
}

// Half of the requests have 100 tokens, half 300.
TEST(PromptToCome, HasTheContextOfAllPromptsInTheMean) {
  const Load load{.arrivals = {.prompt_tokens = 200, .prompt_spread = 1.25}};
  const PromptWork mean = (prompt_work(100) + prompt_work(300)) * 0.5;
  EXPECT_DOUBLE_EQ(load.prompt_to_come(0).tokens, mean.tokens);
  EXPECT_DOUBLE_EQ(load.prompt_to_come(0).context_tokens, mean.context_tokens);
  const PromptWork rest = (prompt_work(50, 50) + prompt_work(150, 150)) * 0.5;
  EXPECT_DOUBLE_EQ(load.prompt_to_come(0.5).tokens, rest.tokens);
  EXPECT_DOUBLE_EQ(load.prompt_to_come(0.5).context_tokens, rest.context_tokens);
}

TEST(WaitProbability, IsErlangsC) {
  EXPECT_NEAR(wait_probability(1, 0.7), 0.7, 1e-9) << "one place: the load";
  EXPECT_NEAR(wait_probability(10, 8), 0.4092, 1e-3);
  EXPECT_LT(wait_probability(20, 2), 1e-10);
  EXPECT_EQ(wait_probability(5, 6), 1);
}

// Compares with a simulated random walk.
TEST(LateProbability, IsThatOfAReflectedRandomWalk) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (const double drift : {-0.2, -0.05, 0.0, 0.1}) {
    constexpr double kVariance = 0.1;
    constexpr double kStepS = 0.01;
    int late = 0;
    constexpr int kWalks = 4000;
    for (int walk = 0; walk < kWalks; ++walk) {
      double wait = 0;
      for (double at_s = 0; at_s < 10; at_s += kStepS) {
        wait =
            std::max(0.0, wait + drift * kStepS + normal(random) * std::sqrt(kVariance * kStepS));
      }
      late += wait > 1 ? 1 : 0;
    }
    EXPECT_NEAR(late_probability(drift, kVariance, 1, 10), late / double{kWalks}, 0.04) << drift;
  }
}

}  // namespace
}  // namespace protean
