#include "scheduler/step_budget.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <optional>
#include <utility>
#include <vector>

#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

TEST(StepBudget, CutsAPromptWhereItsCostReachesTheShare) {
  StepBudget by_tokens({.per_token = 1});
  by_tokens.begin_step(1000);
  by_tokens.divide(400, 400, 2);
  EXPECT_EQ(by_tokens.tokens_of(5000, 300, 16), 200) << "whatever comes before";
  StepBudget by_time({.per_token = 1, .per_position = 0.01});
  by_time.begin_step(1000);
  by_time.divide(400, 400, 2);
  const int early = by_time.tokens_of(0, 300, 16);
  const int late = by_time.tokens_of(1000, 300, 16);
  EXPECT_GT(early, 2 * late) << "later tokens attend to more positions";
  EXPECT_LE(by_time.cost(0, early), 200);
  EXPECT_GT(by_time.cost(0, early + 1), 200);
  EXPECT_EQ(by_time.tokens_of(100000, 300, 16), 16) << "the least";
}

TEST(StepBudget, ASequenceCostsWhatItsKvTakesToRead) {
  const StepBudget budget(
      {.per_token = 1, .per_position = 0.001, .per_sequence = 10, .per_kv_token = 0.01});
  EXPECT_DOUBLE_EQ(budget.cost(999, 1), 10 + 10 + 1 + 1);
  EXPECT_DOUBLE_EQ(budget.cost(0, 100), 10 + 1 + 100 + 5.05);
  EXPECT_EQ(budget.cost(999, 0), 0) << "nothing of it is computed";
}

TEST(StepBudget, HasRoomUntilItsShareIsTaken) {
  StepBudget budget({.per_token = 1});
  budget.begin_step(100);
  budget.divide(0, 0, 2);
  EXPECT_TRUE(budget.has_room()) << "a step is never empty";
  budget.take(0, 1);
  EXPECT_FALSE(budget.has_room());
  budget.begin_step(100);
  budget.take(0, 99);
  EXPECT_TRUE(budget.has_room());
  EXPECT_EQ(budget.cost_taken(), 99);
}

TEST(StepBudget, LookaheadHalvesSharesWhileTheHalvesHaveTheLeastTokens) {
  const auto first_step = [](std::int64_t tokens) {
    StepBudget budget({.per_token = 1, .least_tokens = 100});
    budget.begin_step(10'000);
    budget.divide(static_cast<double>(tokens), tokens, 2);
    return budget.tokens_of(0, 10'000, 1);
  };
  EXPECT_EQ(first_step(40), 20) << "as many steps as stages";
  EXPECT_EQ(first_step(399), 199);
  EXPECT_EQ(first_step(400), 100) << "four steps";
  EXPECT_EQ(first_step(800), 100);
  EXPECT_EQ(first_step(1000), 125) << "eight steps";
}

// A scheduler for two stages with many sequences, whose steps are completed one by one.
class TwoStages : public testing::Test {
 protected:
  explicit TwoStages(const SchedulerConfig& config = TwoStages::config()) : scheduler_(config) {}

  static SchedulerConfig config() {
    SchedulerConfig config = config_of(400);
    config.max_num_seqs = 64;
    config.max_num_batched_tokens = 256;
    config.steps_in_flight = 2;
    return config;
  }

  void add(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(scheduler_.add(request(++last_, {1, 2, 3}, 40)).ok());
    }
  }
  // Completes the older of two steps and plans the next one; returns its sequences.
  std::size_t next() {
    plan_ahead();
    complete(scheduler_, flight_.front());
    flight_.erase(flight_.begin());
    plan_ahead();
    return flight_.back().slices.size();
  }

  void plan_ahead() {
    while (flight_.size() < 2) {
      std::optional<StepPlan> plan = scheduler_.next_step();
      if (!plan) {
        return;
      }
      flight_.push_back(*std::move(plan));
    }
  }

  Scheduler scheduler_;
  std::vector<StepPlan> flight_;
  std::uint64_t last_ = 0;
};

TEST_F(TwoStages, HaveEqualSharesOfTheSequences) {
  add(32);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(next(), 16U);
  }
}

TEST_F(TwoStages, BecomeEvenAgainWhenManyArrive) {
  add(1);
  next();
  add(31);
  for (int i = 0; i < 4; ++i) {
    next();
  }
  EXPECT_EQ(next(), 16U);
  EXPECT_EQ(next(), 16U);
}

// Sixteen sequences that decode in short steps of two stages.
class ShortSteps : public TwoStages {
 protected:
  explicit ShortSteps(std::int64_t blocks = 600) : TwoStages(short_steps(blocks)) {
    add(kDecodes);
    while (scheduler_.observe().waiting > 0) {
      next();
    }
    next();
    next();
  }

  static SchedulerConfig short_steps(std::int64_t blocks) {
    SchedulerConfig config = TwoStages::config();
    config.kv_blocks = blocks;
    config.max_model_len = 1'200;
    config.balance.least_tokens = 16;
    return config;
  }

  static constexpr int kDecodes = 16;
};

// Each of many steps has a part of the decodes, and none has a second turn before all had their
// first: short steps would else be full of those that are ready again, and prompts would wait.
TEST_F(ShortSteps, DecodesTakeTurns) {
  ASSERT_TRUE(scheduler_.add(request(kDecodes + 1, counting(1'000), 1)).ok());
  next();
  next();  // both steps were planned with the prompt
  std::vector<std::uint64_t> decodes;
  for (int step = 0; step < 8; ++step) {
    next();
    for (const std::uint64_t id : who(flight_.back())) {
      if (id <= kDecodes) {
        decodes.push_back(id);
      }
    }
    EXPECT_EQ(flight_.back().slices.back().request.value, kDecodes + 1U);
    EXPECT_GE(flight_.back().slices.back().token_count, 14) << "in step " << step;
  }
  EXPECT_GE(std::ssize(decodes), 4);
  EXPECT_LE(std::ssize(decodes), 16);
  std::sort(decodes.begin(), decodes.end());
  EXPECT_EQ(std::adjacent_find(decodes.begin(), decodes.end()), decodes.end());
}

class ShortStepsWithoutKv : public ShortSteps {
 protected:
  ShortStepsWithoutKv() : ShortSteps(64) {}
};

// A prompt that waits for KV is in no step, so it does not make steps shorter.
TEST_F(ShortStepsWithoutKv, PromptsThatWaitForKvAreNoWork) {
  ASSERT_TRUE(scheduler_.add(request(kDecodes + 1, counting(240), 1)).ok());
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(next(), kDecodes / 2U);
  }
}

// Sequences that cost more than the tokens of short prompts.
class CostlySequences : public TwoStages {
 protected:
  CostlySequences() : TwoStages(costly()) {}

  static SchedulerConfig costly() {
    SchedulerConfig config = TwoStages::config();
    config.balance.per_sequence = 100;
    return config;
  }
};

// No second step is in flight, as in the steps of a group while it changes. Those that decode would
// else take the share of each step, and the prompt would wait until they end.
TEST_F(CostlySequences, DecodesLeaveRoomForPromptsWithOneStepInFlight) {
  add(16);
  for (int step = 0; step < 20; ++step) {
    complete(scheduler_, scheduler_.next_step().value());
  }
  ASSERT_TRUE(scheduler_.add(request(++last_, counting(12, 500), 1)).ok());
  bool drawn = false;
  for (int step = 0; step < 6 && !drawn; ++step) {
    const StepPlan plan = scheduler_.next_step().value();
    EXPECT_LE(plan.slices.size(), 9U) << "half of the decodes and the prompt";
    for (const Sampled& sampled : complete(scheduler_, plan).sampled) {
      drawn = drawn || sampled.request.value == last_;
    }
  }
  EXPECT_TRUE(drawn);
}

// Four sequences that decode, one of which has more than half of KV.
class FullKv : public TwoStages {
 protected:
  FullKv() : TwoStages(full()) {
    add(3);
    EXPECT_TRUE(scheduler_.add(request(++last_, counting(240), 60)).ok());
    for (int step = 0; step < 8; ++step) {
      next();
    }
    EXPECT_EQ(scheduler_.observe().waiting, 0);
  }

  static SchedulerConfig full() {
    SchedulerConfig config = TwoStages::config();
    config.kv_blocks = 100;
    config.max_model_len = 400;
    return config;
  }
};

TEST_F(FullKv, APromptWhoseBlocksAreCachedIsWork) {
  ASSERT_TRUE(scheduler_.add(request(++last_, counting(242), 1)).ok());
  next();
  next();
  EXPECT_EQ(scheduler_.observe().waiting, 0);
}

TEST_F(FullKv, APromptThatFindsNoKvIsNoWork) {
  ASSERT_TRUE(scheduler_.add(request(++last_, counting(240, 500), 1)).ok());
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(next(), 2U) << "half of the decodes";
  }
  EXPECT_EQ(scheduler_.observe().waiting, 1);
  const Sequence::Refused& refused = scheduler_.first_movable(0)->refused;
  EXPECT_GE(refused.free, 0) << "its prefix is not looked up again before KV is free";
}

// With KV full, the sequence that comes last waits or gives way, not one that comes before it.
TEST(StepsInFlight, NoSequenceGivesItsBlocksToALaterOne) {
  SchedulerConfig config = config_of(2);
  config.steps_in_flight = 2;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, {1, 2, 3}, 5), 1).ok());
  ASSERT_TRUE(scheduler.add(request(2, {4, 5, 6}, 5), 2).ok());
  std::vector<StepPlan> flight = {scheduler.next_step().value(), scheduler.next_step().value()};
  ASSERT_EQ(who(flight[0]), std::vector<std::uint64_t>{1});
  ASSERT_EQ(who(flight[1]), std::vector<std::uint64_t>{2});
  complete(scheduler, flight[0]);
  const StepPlan decode = scheduler.next_step().value();  // its fourth token still fits
  ASSERT_EQ(who(decode), std::vector<std::uint64_t>{1});
  complete(scheduler, flight[1]);
  const StepPlan other = scheduler.next_step().value();
  complete(scheduler, decode);
  // Sequence 1 needs a third block while 2, which comes later, is in flight.
  EXPECT_FALSE(scheduler.next_step());
  EXPECT_EQ(scheduler.observe().preemptions_total, 0);
  complete(scheduler, other);
  EXPECT_EQ(who(scheduler.next_step().value()), std::vector<std::uint64_t>{1});
  EXPECT_EQ(scheduler.observe().preemptions_total, 1);
}

}  // namespace
}  // namespace protean
