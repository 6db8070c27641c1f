#include "control/moving_kv.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

// A token of a prompt takes 200 us, and a position that it attends to 1/100 us: a 14B model. A step
// that only decodes takes 20 ms.
struct MovingScene {
  MovingScene() {
    precision.layers[index_of(Precision::kBf16)] = 1;
    StepCost cost{.context_token_us = 0.01};
    cost.of(Precision::kBf16) = {.step_us = 20'000, .more_token_us = 200, .bend_tokens = 64};
    speed = StepSpeed(cost, 2048);
  }
  // A token moves 98 kB over a link with so many bytes a second.
  bool computes_again(double tokens, double bytes_per_s) const {
    return pays_to_compute_again(speed, precision, change,
                                 {.seconds = tokens * 98'304 / bytes_per_s,
                                  .prompt = prompt_work(tokens),
                                  .wait_s = wait_s});
  }

  StepPrecision precision;
  StepSpeed speed{{}, 2048};
  double wait_s = 0.2;
  KvChange change{
      .requests = 60, .batch = {.decoding = 30, .context_tokens = 15'000}, .sharing = 60};
};

constexpr double kGigabit = 125e6;

TEST(MovingKv, AShortRequestIsComputedAgainIfTheLinkIsSlow) {
  const MovingScene scene;
  EXPECT_TRUE(scene.computes_again(600, kGigabit));
  EXPECT_FALSE(scene.computes_again(600, 10 * kGigabit));
  EXPECT_FALSE(scene.computes_again(600, 200 * kGigabit));
}

// What is computed grows with the square of the length, and what moves does not.
TEST(MovingKv, ALongRequestMoves) {
  const MovingScene scene;
  EXPECT_TRUE(scene.computes_again(10'000, kGigabit));
  EXPECT_FALSE(scene.computes_again(200'000, kGigabit));
}

// The request alone waits until it can be computed.
TEST(MovingKv, AFewTokensAreNotWorthTheWait) {
  MovingScene scene;
  EXPECT_FALSE(scene.computes_again(4, kGigabit));
  EXPECT_TRUE(scene.computes_again(50, kGigabit));
  scene.wait_s = 3;
  EXPECT_FALSE(scene.computes_again(50, kGigabit));
  scene.change.requests = scene.change.sharing = 600;
  EXPECT_TRUE(scene.computes_again(50, kGigabit)) << "ten times as many wait for the link";
}

TEST(MovingKv, RequestsThatDoNotShareTheStepsDoNotWaitForThem) {
  MovingScene scene;
  EXPECT_FALSE(scene.computes_again(600, 5 * kGigabit));
  scene.change.sharing = 20;
  EXPECT_TRUE(scene.computes_again(600, 5 * kGigabit));
}

// Steps that only decode take 0.4 s here, about as long as a full prompt adds to one.
TEST(MovingKv, PromptsInTheQueueWaitForWholeSteps) {
  MovingScene scene;
  StepCost cost{.context_token_us = 0.01};
  cost.of(Precision::kBf16) = {.step_us = 400'000, .more_token_us = 200, .bend_tokens = 64};
  scene.speed = StepSpeed(cost, 2048);
  EXPECT_TRUE(scene.computes_again(600, 3.2 * kGigabit));
  scene.change.queued = 30;
  EXPECT_FALSE(scene.computes_again(600, 3.2 * kGigabit));
  EXPECT_TRUE(scene.computes_again(600, kGigabit));
}

TEST(MovingKv, CachedKvWaitsForNothing) {
  const MovingScene scene;
  const auto forgets = [&](double tokens, double bytes_per_s) {
    return pays_to_compute_again(
        scene.speed, scene.precision, scene.change,
        {.seconds = tokens * 98'304 / bytes_per_s, .prompt = prompt_work(600).part(tokens)});
  };
  EXPECT_TRUE(forgets(16, kGigabit));
  EXPECT_TRUE(forgets(20'000, kGigabit));
  EXPECT_FALSE(forgets(20'000, 10 * kGigabit));
  EXPECT_FALSE(forgets(0, kGigabit));
}

TEST(MovingKv, NothingIsGivenUpIfTheCostOfStepsIsNotKnown) {
  MovingScene scene;
  scene.speed = StepSpeed({}, 2048);
  EXPECT_FALSE(scene.computes_again(600, 1));
}

}  // namespace
}  // namespace protean
