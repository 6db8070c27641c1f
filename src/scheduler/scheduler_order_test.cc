// Who comes first, who makes room, and who waits for a prefix that another is computing.

#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "scheduler/test_scene.h"

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
  EXPECT_EQ(who(plan), Ids{2});  // came later, but is worth more
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

TEST(SchedulerOrder, OthersPassThoseWhoWaitForAPrefix) {
  SchedulerConfig config = config_of(60);
  config.max_num_batched_tokens = 32;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(10), 4)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(10), 4)).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(6, 100), 4)).ok());
  Request salted = request(4, counting(10), 4);
  salted.cache_salt = "mine";  // shares nothing with 1
  ASSERT_TRUE(scheduler.add(std::move(salted)).ok());
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 3, 4}));
}

TEST(SchedulerOrder, AWaitForAPrefixEndsWithTheOneWhoComputesIt) {
  Scheduler scheduler(config_of(60));
  ASSERT_TRUE(scheduler.add(request(1, counting(30), 4)).ok());
  complete(scheduler, scheduler.next_step().value());  // 8 of 30 tokens
  ASSERT_TRUE(scheduler.add(request(2, counting(30), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  EXPECT_EQ(scheduler.observe().waiting, 1);
  scheduler.remove(RequestId{1});
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), Ids{2});
  EXPECT_EQ(plan.slices[0].first_position, 16);  // all that 1 got done
}

TEST(SchedulerOrder, NobodyWaitsForAPrefixThatIsOfNoUse) {
  SchedulerConfig config = config_of(60);
  config.max_num_batched_tokens = 64;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(10), 4)).ok());
  Request scored = request(2, counting(10), 4);
  scored.logprobs.prompt = true;  // computes it all anew anyway
  ASSERT_TRUE(scheduler.add(std::move(scored)).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(3), 4)).ok());  // shares less than a block
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 2, 3}));
}

TEST(SchedulerOrder, NobodyWaitsForAPrefixOfAnotherPrecision) {
  Scheduler scheduler(config_of(60));
  ASSERT_TRUE(scheduler.add(request(1, counting(14), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  scheduler.set_precision_tag(1);
  ASSERT_TRUE(scheduler.add(request(2, counting(14), 4)).ok());
  EXPECT_EQ(who(scheduler.next_step().value()), (Ids{1, 2}));
}

TEST(SchedulerOrder, AnUrgentOneDoesNotWaitForTheSlow) {
  Scheduler scheduler(config_of(60));
  ASSERT_TRUE(scheduler.add(request(1, counting(30), 4)).ok());
  complete(scheduler, scheduler.next_step().value());
  ASSERT_TRUE(scheduler.add(request(2, counting(3, 100), 4)).ok());
  ASSERT_TRUE(scheduler.add(urgent(request(3, counting(18), 4), -1)).ok());
  complete(scheduler, scheduler.next_step().value());  // 1 takes all the budget
  complete(scheduler, scheduler.next_step().value());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(plan.slices.back().request, RequestId{3});
}

TEST(SchedulerOrder, BacklogCountsWhatComesBefore) {
  SchedulerConfig config = config_of(12);
  config.max_num_seqs = 2;
  config.prefix_caching = false;
  Scheduler scheduler(config);
  Backlog backlog = scheduler.backlog_before(0, 0, 8);
  EXPECT_EQ(backlog.tokens + backlog.decoding + backlog.without_place, 0);
  ASSERT_TRUE(scheduler.add(request(1, counting(20), 4), 10).ok());
  complete(scheduler, scheduler.next_step().value());  // 12 to go; 7 blocks are left
  ASSERT_TRUE(scheduler.add(request(2, counting(8, 100), 4), 20).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(8, 200), 4), 30).ok());
  backlog = scheduler.backlog_before(0, 15, 8);
  EXPECT_EQ(backlog.tokens, 12);
  EXPECT_EQ(backlog.prompts, 1);
  EXPECT_EQ(backlog.running, 1);
  EXPECT_EQ(backlog.decoding, 0);
  EXPECT_EQ(backlog.without_place, 0);
  backlog = scheduler.backlog_before(0, 25, 8);
  EXPECT_EQ(backlog.tokens, 20);
  EXPECT_EQ(backlog.without_place, 1);
  backlog = scheduler.backlog_before(1, 15, 8);  // all others are more urgent
  EXPECT_EQ(backlog.tokens, 28);
  EXPECT_EQ(backlog.prompts, 3);
  EXPECT_EQ(backlog.without_place, 2);
  EXPECT_EQ(scheduler.backlog_before(0, 15, 30).without_place, 1);  // 8 blocks, 7 are free
}

}  // namespace
}  // namespace protean
