#include "scheduler/microbatches.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

TEST(LongestWhole, IsAShareOfTheBudgetWithinLimits) {
  EXPECT_EQ(longest_whole(8, 1000, 100), 250) << "two of eight sequences";
  EXPECT_EQ(longest_whole(1, 1000, 100), 500) << "at most half";
  EXPECT_EQ(longest_whole(100, 1000, 100), 100) << "at least the floor";
  EXPECT_EQ(longest_whole(100, 100, 29), 29);
  EXPECT_EQ(longest_whole(4, 1, 100), 1);
}

TEST(DealLongestFirst, EachPieceGoesToTheStepWithTheLeast) {
  EXPECT_EQ(deal_longest_first(std::vector<int>{3, 8, 5, 2}, {0, 4}),
            (std::vector<std::size_t>{0, 0, 1, 1}));
  EXPECT_EQ(deal_longest_first(std::vector<int>{1, 1, 1}, {0, 0}),
            (std::vector<std::size_t>{0, 1, 0}))
      << "the first of equal ones";
  EXPECT_TRUE(deal_longest_first({}, {0, 0}).empty());
}

TEST(DealPrompts, AChunkIsAsLongAsTheMeanOfTheWholePrompts) {
  const PromptDeal deal = deal_prompts(std::vector<int>{10, 40, 30}, true, 256, {0, 0});
  EXPECT_EQ(deal.chunk, 26);
  EXPECT_EQ(deal.takes, (std::vector<bool>{true, false, true})) << "the first has 36 tokens";
  EXPECT_EQ(deal_prompts({}, true, 256, {56, 0}).chunk, 200) << "the rest of the step";
}

TEST(DealPrompts, TheFirstWholePromptHasRoomBesideTheChunk) {
  const PromptDeal deal = deal_prompts(std::vector<int>{100}, true, 256, {100, 0});
  EXPECT_EQ(deal.chunk, 56);
  EXPECT_EQ(deal.takes, std::vector<bool>{true}) << "though the other step has nothing";
}

// A scheduler for two stages whose work is dealt longest first.
class DealtWork : public testing::Test {
 protected:
  explicit DealtWork(std::int64_t kv_blocks = 400, int max_num_seqs = 64)
      : scheduler_(config(kv_blocks, max_num_seqs)) {}

  static SchedulerConfig config(std::int64_t kv_blocks, int max_num_seqs) {
    SchedulerConfig config = config_of(kv_blocks);
    config.largest_kv_blocks = 400;
    config.max_num_seqs = max_num_seqs;
    config.max_num_batched_tokens = 256;
    config.max_model_len = 2048;
    config.steps_in_flight = 2;
    config.balance.longest_first = true;
    return config;
  }

  void add(std::vector<TokenId> prompt, int max_tokens = 10, int priority = 0) {
    Request added = request(++last_, std::move(prompt), max_tokens);
    added.priority = priority;
    ASSERT_TRUE(scheduler_.add(std::move(added)).ok());
  }
  // Adds a prompt that shares no prefix with others.
  void add(int tokens, int max_tokens = 10, int priority = 0) {
    add(counting(tokens, static_cast<TokenId>(10'000 * (last_ + 1))), max_tokens, priority);
  }
  // Adds a sequence that decodes in the next step.
  void add_decoding() {
    add(3);
    complete(scheduler_, next());
  }

  StepPlan next() { return scheduler_.next_step().value(); }

  Scheduler scheduler_;
  std::uint64_t last_ = 0;
};

TEST_F(DealtWork, PromptsAreWholeAndInEqualSteps) {
  for (const int tokens : {40, 30, 20, 10}) {
    add(tokens);
  }
  const StepPlan first = next();
  EXPECT_EQ(who(first), (std::vector<std::uint64_t>{1, 4}));
  EXPECT_EQ(first.tokens.size(), 50U);
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{2, 3}));
}

TEST_F(DealtWork, OneLongPromptIsCutInAStep) {
  for (const int tokens : {200, 20, 40, 210}) {
    add(tokens);
  }
  const StepPlan first = next();
  ASSERT_EQ(who(first), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(first.slices[0].token_count, 30) << "the mean of the short ones";
  const StepPlan second = next();
  ASSERT_EQ(who(second), (std::vector<std::uint64_t>{1, 3}));
  EXPECT_EQ(second.slices[0].token_count, 40);
}

TEST_F(DealtWork, DecodesAreEvenlyDivided) {
  std::vector<StepPlan> flight;
  const auto advance = [&] {
    complete(scheduler_, flight.front());
    flight.erase(flight.begin());
    while (flight.size() < 2) {
      std::optional<StepPlan> plan = scheduler_.next_step();
      if (!plan) {
        return;
      }
      flight.push_back(*std::move(plan));
    }
  };
  add(3, 40);
  flight.push_back(next());
  for (int i = 0; i < 31; ++i) {
    add(3, 40);
  }
  for (int i = 0; i < 4; ++i) {
    advance();
  }
  EXPECT_EQ(flight[0].slices.size(), 16U);
  EXPECT_EQ(flight[1].slices.size(), 16U);
}

TEST_F(DealtWork, ALongPromptLeavesRoomForShortOnesWhileAStepIsInFlight) {
  add(1000);
  EXPECT_EQ(next().tokens.size(), 256U) << "there are no others";
  for (const int tokens : {30, 20, 40}) {
    add(tokens);
  }
  const StepPlan plan = next();
  EXPECT_EQ(who(plan), (std::vector<std::uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(plan.slices[0].token_count, 30);
}

TEST_F(DealtWork, NoPromptOvertakesOneOfHigherPriority) {
  add(60, 10, 1);  // the lower number comes first
  for (const int tokens : {10, 12, 14, 16}) {
    add(tokens);
  }
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{3, 5}));
  EXPECT_EQ(who(next()), std::vector<std::uint64_t>{1});
}

TEST_F(DealtWork, PromptsThatWaitForAPrefixAreNotDealt) {
  add_decoding();
  for (int twin = 0; twin < 3; ++twin) {
    add(counting(400, 7000));
  }
  complete(scheduler_, next());
  add(10, 10, 1);
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{1, 2, 5}));
}

TEST_F(DealtWork, CachedTokensAreNoWork) {
  add(counting(200, 7000));
  complete(scheduler_, next());
  scheduler_.remove(RequestId{1});
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<TokenId> prompt = counting(200, 7000);
    prompt.insert(prompt.end(), 10, turn);
    add(std::move(prompt));
  }
  const StepPlan plan = next();
  EXPECT_EQ(who(plan), (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(plan.tokens.size(), 20U);
  EXPECT_EQ(who(next()), std::vector<std::uint64_t>{3});
}

class DealtWorkWithLittleKv : public DealtWork {
 protected:
  DealtWorkWithLittleKv() : DealtWork(20) {}
};

TEST_F(DealtWorkWithLittleKv, PromptsThatWaitForALargerKvAreNotDealt) {
  add_decoding();
  add(100);
  add(10, 10, 1);
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{1, 3}));
}

class DealtWorkOfFewSequences : public DealtWork {
 protected:
  DealtWorkOfFewSequences() : DealtWork(400, 3) {}
};

TEST_F(DealtWorkOfFewSequences, SequencesGiveUpTheirRoomOnlyForPromptsOfTheStep) {
  for (std::uint64_t id = 1; id <= 5; ++id) {
    const bool choice = id <= 3;
    Request added = request(id, counting(20, static_cast<TokenId>(1000 * id)), 10);
    added.call = RequestId{choice ? 9U : 0U};
    ASSERT_TRUE(scheduler_.add(std::move(added), choice ? 100 : 50).ok());
    if (id == 3) {
      const StepPlan first = next();
      complete(scheduler_, first);
      complete(scheduler_, next());
    }
  }
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{1, 4, 5}));
}

}  // namespace
}  // namespace protean
