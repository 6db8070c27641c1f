#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

TEST(Scheduler, CutsLongPromptsIntoChunksAndDecodesFirst) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(3), 9)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(19, 100), 9)).ok());
  StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(plan.slices[1].token_count, 5);
  EXPECT_EQ(plan.slices[1].sample, -1);
  EXPECT_EQ(plan.slices[1].block_count, 2);
  complete(scheduler, plan);
  plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices[0].token_count, 1);  // request 1 decodes
  EXPECT_EQ(plan.slices[1].first_position, 5);
  EXPECT_EQ(plan.slices[1].token_count, 7);
  EXPECT_EQ(plan.tokens.size(), 8U);
  complete(scheduler, plan);
  plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices[1].token_count, 7);
  EXPECT_EQ(plan.slices[1].sample, 1);
  EXPECT_EQ(plan.samples[1].position, 19);
  complete(scheduler, plan);
  EXPECT_EQ(scheduler.next_step().value().tokens.size(), 2U);
}

TEST(Scheduler, LimitsThePromptTokensOfAStep) {
  Scheduler scheduler(config_of(16));
  ASSERT_TRUE(scheduler.add(request(1, counting(2), 8)).ok());
  complete(scheduler, *scheduler.next_step());
  ASSERT_TRUE(scheduler.add(request(2, counting(12, 100), 1)).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(12, 200), 1)).ok());
  const auto tokens = [&] {
    const auto plan = scheduler.next_step();
    const auto count = plan->tokens.size();
    complete(scheduler, *plan);
    return count;
  };
  scheduler.limit_prompts(3);
  EXPECT_EQ(tokens(), 1U + 3U) << "the answer continues";
  scheduler.limit_prompts(0);
  EXPECT_EQ(tokens(), 1U + 1U) << "prompts still advance";
  scheduler.limit_prompts(1000);
  EXPECT_EQ(tokens(), 8U);
}

TEST(Scheduler, PreemptsTheYoungestAndResumesIt) {
  Scheduler scheduler(config_of(4));
  ASSERT_TRUE(scheduler.add(request(1, counting(7), 6)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(4, 50), 6)).ok());
  StepPlan plan = scheduler.next_step().value();  // request 1 has 2 blocks, request 2 has 1
  EXPECT_EQ(plan.slices.size(), 2U);
  for (int step = 0; step < 3 && plan.slices.size() == 2; ++step) {
    complete(scheduler, plan);
    plan = scheduler.next_step().value();
  }
  // Request 1 needed its third block and request 2 its second. One was free: the older got it.
  EXPECT_EQ(who(plan), std::vector<std::uint64_t>{1});
  EXPECT_EQ(scheduler.observe().preemptions_total, 1);
  EXPECT_EQ(scheduler.observe().waiting, 1);
  complete(scheduler, plan);
  EXPECT_EQ(scheduler.remove(RequestId{1})->preemptions, 0);
  plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), std::vector<std::uint64_t>{2});
  // Its first block is still cached; the rest is computed again, with the output so far.
  EXPECT_EQ(plan.slices[0].first_position, 4);
  EXPECT_EQ(plan.tokens, (std::vector<TokenId>{99}));
  EXPECT_EQ(scheduler.remove(RequestId{2})->preemptions, 1);
  EXPECT_EQ(scheduler.observe().kv_blocks_used, 0);
}

TEST(Scheduler, ReusesAPrefixAndNeverTheWholePrompt) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(8), 2)).ok());
  complete(scheduler, scheduler.next_step().value());
  scheduler.remove(RequestId{1});
  ASSERT_TRUE(scheduler.add(request(2, counting(8), 2)).ok());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices[0].first_position, 4);  // not 8: the last token is computed for its logits
  EXPECT_EQ(plan.slices[0].token_count, 4);
  EXPECT_EQ(scheduler.observe().prefix_hit_tokens_total, 4);
  EXPECT_EQ(scheduler.remove(RequestId{2})->cached_tokens, 4);
}

TEST(Scheduler, SequencesComputedConcurrentlyShareTheirPrefix) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(4), 4)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(4), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.blocks[0], plan.blocks[2]);
  EXPECT_NE(plan.blocks[1], plan.blocks[3]);
  EXPECT_EQ(scheduler.observe().kv_blocks_used, 3);
}

TEST(Scheduler, BlocksOfAnotherPrecisionAreNotReused) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(12), 8)).ok());
  complete(scheduler, scheduler.next_step().value());  // 8 tokens at tag 0
  scheduler.set_precision_tag(1);
  complete(scheduler, scheduler.next_step().value());  // the rest at tag 1, after blocks of tag 0
  ASSERT_TRUE(scheduler.add(request(2, counting(12), 8)).ok());
  StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices.back().first_position, 0);
  complete(scheduler, plan);
  scheduler.set_precision_tag(0);
  ASSERT_TRUE(scheduler.add(request(3, counting(12), 8)).ok());
  plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices.back().request, RequestId{3});
  EXPECT_EQ(plan.slices.back().first_position, 8);  // the third block was computed at tag 1
}

TEST(Scheduler, NoPromptReusesTheBlocksOfASequenceThatFailed) {
  Scheduler scheduler(config_of(16));
  ASSERT_TRUE(scheduler.add(request(1, counting(12), 2)).ok());
  complete(scheduler, scheduler.next_step().value());
  const StepPlan last = scheduler.next_step().value();
  ASSERT_EQ(last.slices.front().first_position, 8);
  StepResult result{.id = last.id,
                    .sampled = std::vector<TokenId>(last.samples.size()),
                    .logprobs = std::vector<TokenLogprobs>(last.samples.size())};
  result.failed.push_back({RequestId{1}, "its logits are no numbers"});
  ASSERT_EQ(scheduler.complete(std::move(result)).failed.size(), 1U);
  scheduler.remove(RequestId{1});
  ASSERT_TRUE(scheduler.add(request(2, counting(12), 2)).ok());
  EXPECT_EQ(scheduler.next_step()->slices.front().first_position, 0);
}

TEST(Scheduler, SaltSeparatesPrefixes) {
  Scheduler scheduler(config_of(20));
  for (const auto& [id, salt] : {std::pair{1, "a"}, {2, "b"}, {3, "a"}}) {
    Request asks = request(static_cast<std::uint64_t>(id), counting(8), 2);
    asks.cache_salt = salt;
    ASSERT_TRUE(scheduler.add(std::move(asks)).ok());
    complete(scheduler, scheduler.next_step().value());
    EXPECT_EQ(scheduler.remove(RequestId{static_cast<std::uint64_t>(id)})->cached_tokens,
              id == 3 ? 4 : 0);
  }
}

TEST(Scheduler, ASequenceIsInOneStepAtATime) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(3), 4)).ok());
  const StepPlan first = scheduler.next_step().value();
  EXPECT_FALSE(scheduler.next_step().has_value());
  ASSERT_TRUE(scheduler.add(request(2, counting(3), 4)).ok());
  const StepPlan second = scheduler.next_step().value();
  EXPECT_EQ(who(second), std::vector<std::uint64_t>{2});
  complete(scheduler, first);
  EXPECT_EQ(who(scheduler.next_step().value()), std::vector<std::uint64_t>{1});
}

TEST(Scheduler, TheHeadOfTheQueueIsNotOvertaken) {
  Scheduler scheduler(config_of(6));
  ASSERT_TRUE(scheduler.add(request(1, counting(12), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  ASSERT_TRUE(
      scheduler.add(request(2, counting(16, 100), 4)).ok());  // needs 4 blocks, and 3 are free
  ASSERT_TRUE(scheduler.add(request(3, counting(2, 200), 4)).ok());
  EXPECT_EQ(who(scheduler.next_step().value()), std::vector<std::uint64_t>{1});
  scheduler.remove(RequestId{1});
  EXPECT_EQ(who(scheduler.next_step().value()), std::vector<std::uint64_t>{2});
}

TEST(Scheduler, ABlockIsReusableOnlyOnceItsLastTokenIsComputed) {
  SchedulerConfig config = config_of(20);
  config.max_num_batched_tokens = 7;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(12), 4)).ok());
  complete(scheduler, scheduler.next_step().value());  // 7 tokens: one less than two blocks hold
  scheduler.remove(RequestId{1});
  ASSERT_TRUE(scheduler.add(request(2, counting(12), 4)).ok());
  EXPECT_EQ(scheduler.next_step()->slices[0].first_position, 4);
}

TEST(Scheduler, BlocksAreCachedAtThePrecisionOfTheirStepNotOfItsCompletion) {
  Scheduler scheduler(config_of(20));
  ASSERT_TRUE(scheduler.add(request(1, counting(8), 4)).ok());
  const StepPlan plan = scheduler.next_step().value();
  scheduler.set_precision_tag(1);
  complete(scheduler, plan);
  scheduler.remove(RequestId{1});
  ASSERT_TRUE(scheduler.add(request(2, counting(8), 4)).ok());
  EXPECT_EQ(scheduler.next_step()->slices[0].first_position, 0);
  scheduler.set_precision_tag(0);
  ASSERT_TRUE(scheduler.add(request(3, counting(8), 4)).ok());
  scheduler.remove(RequestId{2});
  EXPECT_EQ(scheduler.next_step()->slices[0].first_position, 4);
}

TEST(Scheduler, TheBeginningOfAPromptStaysCachedLongerThanItsEnd) {
  Scheduler scheduler(config_of(4));
  ASSERT_TRUE(scheduler.add(request(1, counting(16), 1)).ok());
  complete(scheduler, scheduler.next_step().value());
  complete(scheduler, scheduler.next_step().value());
  scheduler.remove(RequestId{1});  // leaves four cached blocks, all free
  ASSERT_TRUE(scheduler.add(request(2, counting(7, 100), 1)).ok());
  complete(scheduler, scheduler.next_step().value());
  scheduler.remove(RequestId{2});  // used two of them
  ASSERT_TRUE(scheduler.add(request(3, counting(16), 1)).ok());
  EXPECT_EQ(scheduler.next_step()->slices[0].first_position, 8);
}

TEST(Scheduler, AnEqualPromptIsAdmittedAsSoonAsItCanShareEnough) {
  Scheduler scheduler(config_of(6));
  // Each needs five blocks: both fit at once only if they share the first four.
  ASSERT_TRUE(scheduler.add(request(1, counting(18), 2)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(18), 2)).ok());
  const StepPlan first = scheduler.next_step().value();
  EXPECT_FALSE(scheduler.next_step().has_value());  // one block is free, too few for the second
  complete(scheduler, first);
  const StepPlan second = scheduler.next_step().value();
  EXPECT_FALSE(scheduler.next_step().has_value());
  complete(scheduler, second);
  const StepPlan third = scheduler.next_step().value();  // ends the first one's prompt
  EXPECT_EQ(who(third), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(third.slices[1].first_position, 16);
  EXPECT_EQ(scheduler.observe().kv_blocks_used, 6);
}

}  // namespace
}  // namespace protean
