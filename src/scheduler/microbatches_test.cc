#include "scheduler/microbatches.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

TEST(PromptCut, OnlyPromptsLongerThanAShareOfTheBudgetAreCut) {
  const std::vector<int> prompts = {10, 20, 900};
  const PromptCut cut = prompt_cut(prompts, 8, 1000, 100);
  EXPECT_EQ(cut.longest_whole, 250) << "two of eight sequences";
  EXPECT_EQ(cut.chunk, 15) << "the mean of the others";
  EXPECT_EQ(prompt_cut(prompts, 1, 1000, 100).longest_whole, 500) << "at most half";
  EXPECT_EQ(prompt_cut(prompts, 100, 1000, 100).longest_whole, 100) << "at least the floor";
  EXPECT_EQ(prompt_cut(prompts, 4, 1, 100).longest_whole, 1);
  EXPECT_EQ(prompt_cut(std::vector<int>{900}, 8, 1000, 100).chunk, 1000) << "none is whole";
}

TEST(DealLongestFirst, EachPieceGoesToTheStepWithTheLeast) {
  EXPECT_EQ(deal_longest_first(std::vector<int>{3, 8, 5, 2}, {0, 4}),
            (std::vector<std::size_t>{0, 0, 1, 1}));
  EXPECT_EQ(deal_longest_first(std::vector<int>{1, 1, 1}, {0, 0}),
            (std::vector<std::size_t>{0, 1, 0}))
      << "the first of equal ones";
  EXPECT_TRUE(deal_longest_first({}, {0, 0}).empty());
}

// A scheduler for two stages whose work is dealt longest first.
class DealtWork : public testing::Test {
 protected:
  DealtWork() : scheduler_(config()) {}

  static SchedulerConfig config() {
    SchedulerConfig config = config_of(400);
    config.max_num_seqs = 64;
    config.max_num_batched_tokens = 256;
    config.max_model_len = 512;
    config.steps_in_flight = 2;
    config.balance.longest_first = true;
    return config;
  }

  // Adds a prompt that shares no prefix with others.
  void add(int tokens, int max_tokens = 10, int priority = 0) {
    ++last_;
    Request added =
        request(last_, counting(tokens, static_cast<TokenId>(1000 * last_)), max_tokens);
    added.priority = priority;
    ASSERT_TRUE(scheduler_.add(std::move(added)).ok());
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
  EXPECT_TRUE(scheduler_.demand().step_full) << "work is left for another step";
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{2, 3}));
  EXPECT_FALSE(scheduler_.demand().step_full);
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

TEST_F(DealtWork, NoPromptOvertakesOneOfHigherPriority) {
  add(60, 10, 1);  // the lower number comes first
  for (const int tokens : {10, 12, 14}) {
    add(tokens);
  }
  EXPECT_EQ(who(next()), (std::vector<std::uint64_t>{2, 4})) << "the first and the longest";
  EXPECT_EQ(who(next()), std::vector<std::uint64_t>{3});
}

}  // namespace
}  // namespace protean
