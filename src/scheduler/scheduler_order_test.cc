// The order of sequences, preemption, and waiting for a prefix that another sequence computes.

#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

using Ids = std::vector<std::uint64_t>;

Request urgent(Request asks, int priority) {
  asks.priority = priority;
  return asks;
}

TEST(SchedulerOrder, PriorityThenDueThenArrival) {
  SchedulerConfig config = config_of(40);
  config.max_num_seqs = 1;
  Scheduler scheduler(config);
  const auto add = [&](std::uint64_t id, int priority, TimeNs due_ns) {
    const auto first = static_cast<TokenId>(id) * 100;
    ASSERT_TRUE(scheduler.add(urgent(request(id, counting(2, first), 1), priority), due_ns).ok());
  };
  add(1, 0, 500);
  add(2, 1, 100);
  add(3, 0, 400);
  add(4, -1, 900);
  add(5, 0, 400);
  Ids order;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.next_step().value();
    order.push_back(plan.slices.at(0).request.value);
    complete(scheduler, plan);
    scheduler.remove(plan.slices[0].request);
  }
  EXPECT_EQ(order, (Ids{4, 3, 5, 1, 2}));
}

TEST(SchedulerOrder, TheLastInOrderMakesRoomAndComesBackToItsPlace) {
  Scheduler scheduler(config_of(4));
  ASSERT_TRUE(scheduler.add(urgent(request(1, counting(4, 100), 6), 5)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(7), 6)).ok());
  StepPlan plan = scheduler.next_step().value();
  for (int step = 0; step < 3 && plan.slices.size() == 2; ++step) {
    complete(scheduler, plan);
    plan = scheduler.next_step().value();
  }
  EXPECT_EQ(who(plan), Ids{2});  // came later, with a higher priority
  complete(scheduler, plan);
  ASSERT_TRUE(scheduler.add(urgent(request(3, counting(2, 200), 6), 6)).ok());
  scheduler.remove(RequestId{2});
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 3}));
}

TEST(SchedulerOrder, EqualPromptsAreComputedOnce) {
  SchedulerConfig config = config_of(60);
  config.max_num_batched_tokens = 64;
  Scheduler scheduler(config);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(scheduler.add(request(id, counting(18), 4)).ok());
  }
  StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), Ids{1});
  complete(scheduler, plan);
  plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), (Ids{1, 2, 3, 4}));
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(plan.slices[i].first_position, 16);
    EXPECT_EQ(plan.slices[i].token_count, 2);
  }
}

TEST(SchedulerOrder, SequencesThatWaitForAPrefixArePassedOver) {
  SchedulerConfig config = config_of(60);
  config.max_num_batched_tokens = 32;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(10), 4)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(10), 4)).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(6, 100), 4)).ok());
  Request salted = request(4, counting(10), 4);
  salted.cache_salt = "mine";  // shares nothing with request 1
  ASSERT_TRUE(scheduler.add(std::move(salted)).ok());
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 3, 4}));
}

TEST(SchedulerOrder, AWaitForAPrefixEndsWithTheSequenceThatComputesIt) {
  Scheduler scheduler(config_of(60));
  ASSERT_TRUE(scheduler.add(request(1, counting(30), 4)).ok());
  complete(scheduler, scheduler.next_step().value());  // 8 of 30 tokens
  ASSERT_TRUE(scheduler.add(request(2, counting(30), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  EXPECT_EQ(scheduler.observe().waiting, 1);
  scheduler.remove(RequestId{1});
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), Ids{2});
  EXPECT_EQ(plan.slices[0].first_position, 16);  // the tokens that request 1 had computed
}

TEST(SchedulerOrder, NoSequenceWaitsForAPrefixThatItCannotReuse) {
  SchedulerConfig config = config_of(60);
  config.max_num_batched_tokens = 64;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(10), 4)).ok());
  Request scored = request(2, counting(10), 4);
  scored.logprobs.prompt = true;  // is computed without the cache
  ASSERT_TRUE(scheduler.add(std::move(scored)).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(3), 4)).ok());  // shares less than a block
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 2, 3}));
}

TEST(SchedulerOrder, NoSequenceWaitsForAPrefixOfAnotherPrecision) {
  Scheduler scheduler(config_of(60));
  ASSERT_TRUE(scheduler.add(request(1, counting(14), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  scheduler.set_precision_tag(1);
  ASSERT_TRUE(scheduler.add(request(2, counting(14), 4)).ok());
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 2}));
}

TEST(SchedulerOrder, AnUrgentSequenceDoesNotWaitForASlowOne) {
  Scheduler scheduler(config_of(60));
  ASSERT_TRUE(scheduler.add(request(1, counting(30), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  ASSERT_TRUE(scheduler.add(request(2, counting(3, 100), 4)).ok());
  ASSERT_TRUE(scheduler.add(urgent(request(3, counting(18), 4), -1)).ok());
  complete(scheduler, scheduler.next_step().value());  // request 1 uses the token budget
  complete(scheduler, scheduler.next_step().value());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices.back().request, RequestId{3});
}

// Adds one call's `count` sequences with prompts of their own, all due at 10.
void add_call(Scheduler& scheduler, std::uint64_t first, int count) {
  for (std::uint64_t id = first; id < first + static_cast<std::uint64_t>(count); ++id) {
    Request asks = request(id, counting(2, static_cast<TokenId>(id) * 100), 30);
    asks.call = RequestId{first};
    ASSERT_TRUE(scheduler.add(std::move(asks), 10).ok());
  }
}

TEST(SchedulerOrder, SequencesOfOneCallAreDueOneAfterAnother) {
  Scheduler scheduler(config_of(60));
  add_call(scheduler, 1, 3);
  ASSERT_TRUE(scheduler.add(request(4, counting(2), 30), 15, 5).ok());
  EXPECT_EQ(scheduler.due_ns(RequestId{1}), 10);
  EXPECT_EQ(scheduler.due_ns(RequestId{2}), 20);
  EXPECT_EQ(scheduler.due_ns(RequestId{3}), 30);
  EXPECT_EQ(scheduler.due_ns(RequestId{4}), 15);
  scheduler.remove(RequestId{1});
  scheduler.remove(RequestId{2});
  Request more = request(5, counting(2), 30);
  more.call = RequestId{1};
  ASSERT_TRUE(scheduler.add(std::move(more), 10).ok());
  EXPECT_EQ(scheduler.due_ns(RequestId{5}), 20);  // one sequence of the call is left
}

TEST(SchedulerOrder, ACallWithManySequencesGivesUpAllPlacesButOne) {
  Scheduler scheduler(config_of(60));  // four places in a step
  add_call(scheduler, 1, 20);
  for (int step = 0; step < 3; ++step) {
    complete(scheduler, scheduler.next_step().value());
  }
  EXPECT_EQ(scheduler.observe().running, 4);
  ASSERT_TRUE(scheduler.add(request(21, counting(2, 5000), 30), 15, 5).ok());
  StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), (Ids{1, 2, 3, 21}));
  complete(scheduler, plan);
  for (std::uint64_t id = 22; id <= 25; ++id) {
    const auto first = static_cast<TokenId>(id) * 300;
    ASSERT_TRUE(scheduler.add(request(id, counting(2, first), 30), 16, 6).ok());
  }
  plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), (Ids{1, 21, 22, 23}));  // 24 and 25 wait as they would for other calls
  complete(scheduler, plan);
  scheduler.remove(RequestId{21});
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 22, 23, 24}));
}

TEST(SchedulerOrder, ACallWithManySequencesGivesUpKv) {
  SchedulerConfig config = config_of(12);
  config.max_num_seqs = 16;
  Scheduler scheduler(config);
  add_call(scheduler, 1, 8);
  for (int step = 0; step < 8; ++step) {
    complete(scheduler, scheduler.next_step().value());
  }
  ASSERT_LT(scheduler.observe().kv_blocks - scheduler.observe().kv_blocks_used, 4);
  ASSERT_TRUE(scheduler.add(request(9, counting(16, 5000), 4), 15, 5).ok());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices.back().request, RequestId{9});
  EXPECT_EQ(plan.slices.front().request, RequestId{1});
}

TEST(SchedulerOrder, ACallWithOneSequenceKeepsItsPlace) {
  SchedulerConfig config = config_of(60);
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  add_call(scheduler, 1, 1);
  add_call(scheduler, 2, 1);
  complete(scheduler, scheduler.next_step().value());
  ASSERT_TRUE(scheduler.add(urgent(request(3, counting(2, 900), 30), -1), 1).ok());
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 2}));
}

TEST(SchedulerOrder, BacklogCountsTheWorkThatComesBefore) {
  SchedulerConfig config = config_of(12);
  config.max_num_seqs = 2;
  config.prefix_caching = false;
  Scheduler scheduler(config);
  Backlog backlog = scheduler.backlog_before(0, 0, 8);
  EXPECT_EQ(backlog.tokens + backlog.decoding + backlog.without_place, 0);
  ASSERT_TRUE(scheduler.add(request(1, counting(20), 4), 10).ok());
  complete(scheduler,
           scheduler.next_step().value());  // 12 tokens are left to compute, and 7 blocks are free
  ASSERT_TRUE(scheduler.add(request(2, counting(8, 100), 4), 20).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(8, 200), 4), 30).ok());
  backlog = scheduler.backlog_before(0, 15, 8);
  EXPECT_EQ(backlog.tokens, 12);
  EXPECT_EQ(backlog.prompt_context_tokens, 12 * 8 + 12 * 13 / 2) << "8 tokens are computed";
  EXPECT_EQ(backlog.prompts, 1);
  EXPECT_EQ(backlog.running, 1);
  EXPECT_EQ(backlog.decoding, 0);
  EXPECT_EQ(backlog.without_place, 0);
  backlog = scheduler.backlog_before(0, 25, 8);
  EXPECT_EQ(backlog.tokens, 20);
  EXPECT_EQ(backlog.without_place, 1);
  backlog = scheduler.backlog_before(1, 15, 8);  // all other requests come first
  EXPECT_EQ(backlog.tokens, 28);
  EXPECT_EQ(backlog.prompt_context_tokens, 12 * 8 + 12 * 13 / 2 + 2 * (8 * 9 / 2));
  EXPECT_EQ(backlog.prompts, 3);
  EXPECT_EQ(backlog.without_place, 2);
  EXPECT_EQ(scheduler.backlog_before(0, 15, 30).without_place,
            1);  // needs 8 blocks, and 7 are free
}

}  // namespace
}  // namespace protean
