// Logprobs, penalties, scores and pooling: how the scheduler puts them into plans and reads them
// from results.

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

class NoConstraint : public TokenConstraint {
 public:
  void allowed_after(std::span<const TokenId>, TokenMask) override {}
};

TEST(SchedulerAsks, OnlySamplesThatNeedHistoryHaveIt) {
  Scheduler scheduler(config_of(20));
  Request plain = request(1, counting(2), 9);
  plain.rules = std::make_shared<const TokenRules>(TokenRules{.bias = {{1, 2.0F}}});
  Request penalised = request(2, counting(3, 10), 9);
  penalised.sampling.presence_penalty = 1.0F;
  Request constrained = request(3, counting(2, 20), 9);
  constrained.constraint = std::make_shared<NoConstraint>();
  Request worded = request(4, counting(1, 30), 9);
  worded.rules = std::make_shared<const TokenRules>(TokenRules{.bad_words = {{5, 6}}});
  const std::vector<Request> requests = {plain, penalised, constrained, worded};
  for (const Request& one : requests) {
    ASSERT_TRUE(scheduler.add(one).ok());
  }
  complete(scheduler, scheduler.next_step().value());
  const StepPlan plan = scheduler.next_step().value();
  ASSERT_EQ(plan.samples.size(), 4U);
  EXPECT_EQ(plan.history, (std::vector<TokenId>{10, 11, 12, 99, 20, 21, 99, 30, 99}));
  EXPECT_EQ(plan.samples[0].history_count, 0);
  EXPECT_EQ(plan.samples[0].rules, plain.rules);
  EXPECT_EQ(plan.samples[1].history_begin, 0);
  EXPECT_EQ(plan.samples[1].history_count, 4);
  EXPECT_EQ(plan.samples[1].prompt_count, 3);
  EXPECT_EQ(plan.samples[2].history_begin, 4);
  EXPECT_EQ(plan.samples[2].prompt_count, 2);
  EXPECT_EQ(plan.samples[2].constraint, constrained.constraint);
  EXPECT_EQ(plan.samples[3].history_begin, 7);
  EXPECT_EQ(plan.samples[3].history_count, 2);
}

TEST(SchedulerAsks, StopIdsAreBannedUntilMinTokens) {
  Scheduler scheduler(config_of(20));
  Request asks = request(1, counting(3), 9);
  asks.stop_ids = {7, 8};
  asks.min_tokens = 2;
  ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
  std::vector<std::size_t> banned;
  for (int i = 0; i < 4; ++i) {
    const StepPlan plan = scheduler.next_step().value();
    banned.push_back(plan.samples.at(0).banned.size());
    complete(scheduler, plan);
  }
  EXPECT_EQ(banned, (std::vector<std::size_t>{2, 2, 0, 0}));
}

TEST(SchedulerAsks, LogprobsOfAnswersComeWithTheirTokens) {
  Scheduler scheduler(config_of(20));
  Request silent = request(1, counting(2), 9);
  Request asks = request(2, counting(2, 10), 9);
  asks.logprobs = {.answer = true, .top = 5};
  ASSERT_TRUE(scheduler.add(std::move(silent)).ok());
  ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.samples[0].top_logprobs, -1);
  EXPECT_EQ(plan.samples[1].top_logprobs, 5);
  const StepOutcome outcome = complete(scheduler, plan);
  EXPECT_FALSE(outcome.sampled[0].logprobs.has_value());
  EXPECT_TRUE(outcome.sampled[1].logprobs.has_value());
}

TEST(SchedulerAsks, APromptIsScoredOnceEvenIfItIsCached) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(19), 1)).ok());
  while (complete(scheduler, scheduler.next_step().value()).sampled.empty()) {
  }
  scheduler.remove(RequestId{1});
  Request asks = request(2, counting(19), 5);
  asks.logprobs = {.prompt = true, .top = 3, .whole_rows = true};
  ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
  std::vector<float> scored;
  int sampled = 0;
  for (int step = 0; step < 4; ++step) {
    const StepPlan plan = scheduler.next_step().value();
    const SequenceSlice& slice = plan.slices.at(0);
    for (const ScoreSpec& score : plan.scores) {
      EXPECT_EQ(score.token, plan.tokens[static_cast<std::size_t>(score.after)] + 1);
      EXPECT_EQ(score.top_logprobs, 3);
      EXPECT_TRUE(score.whole_row);
    }
    EXPECT_EQ(slice.score_count, std::ssize(plan.scores));
    const StepOutcome outcome = complete(scheduler, plan);
    for (const Scored& part : outcome.scored) {
      EXPECT_EQ(part.first_position, std::ssize(scored) + 1);
      for (const TokenLogprobs& one : part.logprobs) {
        scored.push_back(-one.logprob);
      }
    }
    sampled += static_cast<int>(outcome.sampled.size());
  }
  EXPECT_EQ(scored,
            (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(sampled, 2);
  EXPECT_EQ(scheduler.remove(RequestId{2})->cached_tokens, 0);
}

// Request 2 is preempted within its prompt for the decode of request 1. It may reuse cached blocks
// of the tokens that it had scored.
TEST(SchedulerAsks, PreemptionWithinAPromptScoresNothingTwice) {
  SchedulerConfig config = config_of(7);
  config.max_num_batched_tokens = 5;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(4, 100), 20)).ok());
  complete(scheduler, scheduler.next_step().value());
  Request asks = request(2, counting(20), 0);
  asks.logprobs = {.prompt = true};
  ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
  std::vector<float> scored;
  bool done = false;
  for (int step = 0; step < 40 && !done; ++step) {
    const StepPlan plan = scheduler.next_step().value();
    const StepOutcome outcome = complete(scheduler, plan);
    for (const Scored& part : outcome.scored) {
      EXPECT_EQ(part.first_position, std::ssize(scored) + 1);
      for (const TokenLogprobs& one : part.logprobs) {
        scored.push_back(-one.logprob);
      }
    }
    done = !outcome.computed.empty();
    if (scheduler.observe().preemptions_total == 1 && !done) {
      scheduler.remove(RequestId{1});
    }
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(scored.size(), 19U);
  EXPECT_TRUE(std::is_sorted(scored.begin(), scored.end(), std::less_equal<>()));
  EXPECT_EQ(scheduler.remove(RequestId{2})->preemptions, 1);
}

TEST(SchedulerAsks, APromptAloneEndsWithoutADraw) {
  Scheduler scheduler(config_of(16));
  ASSERT_TRUE(scheduler.add(request(1, counting(64), 0)).ok());  // fills the context and all blocks
  for (int step = 0; step < 8; ++step) {
    const StepPlan plan = scheduler.next_step().value();
    EXPECT_TRUE(plan.samples.empty());
    const StepOutcome outcome = complete(scheduler, plan);
    EXPECT_EQ(outcome.computed.size(), step == 7 ? 1U : 0U);
  }
  EXPECT_FALSE(scheduler.next_step().has_value());
  EXPECT_EQ(scheduler.remove(RequestId{1})->output_tokens, 0);
  EXPECT_FALSE(scheduler.add(request(2, counting(65), 0)).ok());
  Scheduler small(config_of(4));
  EXPECT_TRUE(small.add(request(1, counting(16), 0)).ok());
  EXPECT_FALSE(small.add(request(2, counting(17), 0)).ok());  // its last token needs KV too
}

TEST(SchedulerAsks, PoolsEveryRowOrTheLastOne) {
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    Scheduler scheduler(config_of(20));
    for (const std::uint64_t id : {1U, 2U}) {  // request 2 finds request 1's blocks
      Request asks = request(id, counting(19), 0);
      asks.pooling = pooling;
      ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
      std::vector<double> rows;
      for (bool done = false; !done;) {
        const StepOutcome outcome = complete(scheduler, scheduler.next_step().value());
        for (const Pooled& pooled : outcome.pooled) {
          EXPECT_EQ(pooled.first_position, pooled.row.at(0));
          rows.push_back(pooled.row.at(0));
        }
        done = !outcome.computed.empty();
      }
      const bool mean = pooling == Pooling::kMean;
      EXPECT_EQ(rows, mean ? (std::vector<double>{0, 8, 16}) : std::vector<double>{16});
      EXPECT_EQ(scheduler.remove(RequestId{id})->cached_tokens, id == 1 || mean ? 0 : 16);
    }
  }
}

TEST(SchedulerAsks, ACancelledRequestsResultsAreSkipped) {
  Scheduler scheduler(config_of(20));
  for (const std::uint64_t id : {1U, 2U}) {
    Request asks = request(id, counting(4, static_cast<TokenId>(id) * 10), 0);
    asks.logprobs.prompt = true;
    asks.pooling = Pooling::kMean;
    ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
  }
  const StepPlan plan = scheduler.next_step().value();
  scheduler.remove(RequestId{1});
  StepResult result{.id = plan.id, .pooled = {{1.0}, {2.0}}};
  for (const ScoreSpec& score : plan.scores) {
    result.scored.push_back({.logprob = -static_cast<float>(score.token)});
  }
  const StepOutcome outcome = scheduler.complete(std::move(result));
  ASSERT_EQ(outcome.pooled.size(), 1U);
  EXPECT_EQ(outcome.pooled[0].row, std::vector<double>{2.0});
  ASSERT_EQ(outcome.scored.size(), 1U);
  EXPECT_EQ(outcome.scored[0].logprobs[0].logprob, -21.0F);
}

}  // namespace
}  // namespace protean
