#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_scene_for_test.h"

// KV that changes size while sequences use it.

namespace protean {
namespace {

using Ids = std::vector<std::uint64_t>;

StepPlan started(Scheduler& scheduler, std::uint64_t id, int prompt, int max_tokens) {
  EXPECT_TRUE(
      scheduler.add(request(id, counting(prompt, static_cast<TokenId>(100 * id)), max_tokens))
          .ok());
  StepPlan plan = scheduler.next_step().value();
  complete(scheduler, plan);
  return plan;
}

// A KV of 8 blocks of 4 tokens: request 2 holds blocks 3 and 4 and needs a third; the rest is free.
void scene_of_moves(Scheduler& scheduler) {
  started(scheduler, 1, 8, 8);  // blocks 0 and 1, then 2
  started(scheduler, 2, 8, 20);
  scheduler.remove(RequestId{1});
}

TEST(SchedulerKv, ASequenceContinuesWithItsMovedBlocks) {
  Scheduler scheduler(roomy(8));
  scene_of_moves(scheduler);
  scheduler.begin_shrink(3);
  const StepPlan before = scheduler.next_step().value();
  EXPECT_EQ(before.blocks, (std::vector<BlockId>{3, 4, 2}));
  EXPECT_EQ(scheduler.next_moves(1), (std::vector<BlockMove>{{.from = 3, .to = 1}}));
  EXPECT_FALSE(scheduler.shrink_ready());
  EXPECT_EQ(scheduler.next_moves(8), (std::vector<BlockMove>{{.from = 4, .to = 0}}));
  EXPECT_TRUE(scheduler.shrink_ready());
  scheduler.finish_shrink();
  complete(scheduler, before);
  EXPECT_EQ(scheduler.next_step()->blocks, (std::vector<BlockId>{1, 0, 2}));
  EXPECT_EQ(scheduler.observe().kv_blocks, 3);
  EXPECT_EQ(scheduler.observe().kv_blocks_used, 3);
}

TEST(SchedulerKv, LeavingBlocksAreNotReused) {
  for (const bool leaves : {false, true}) {
    Scheduler scheduler(config_of(10));
    const StepPlan first = started(scheduler, 1, 8, 8);  // its blocks are 0 and 1
    ASSERT_EQ(first.blocks, (std::vector<BlockId>{0, 1}));
    if (leaves) {
      scheduler.begin_shrink(1);
      scheduler.next_moves(0);
    }
    Request twin = request(2, counting(8, 100), 1);
    EXPECT_EQ(scheduler.tokens_to_compute(twin), 4);  // the last block is always computed
    twin.prompt.push_back(7);
    EXPECT_EQ(scheduler.tokens_to_compute(twin), leaves ? 5 : 1);
  }
}

TEST(SchedulerKv, NewcomersLeaveRoomForBlocksThatMove) {
  Scheduler scheduler(roomy(8));
  scene_of_moves(scheduler);
  scheduler.begin_shrink(4);
  ASSERT_TRUE(scheduler.add(request(3, counting(8, 300), 1)).ok());
  const StepPlan plan = scheduler.next_step().value();
  EXPECT_EQ(who(plan), Ids{2});  // takes one of three free blocks; block 4 moves to another
  complete(scheduler, plan);
  scheduler.cancel_shrink();
  EXPECT_EQ(who(scheduler.next_step().value()), Ids({2, 3}));
}

TEST(SchedulerKv, ASequenceThatNeedsALargerKvWaitsAndDelaysNoOther) {
  SchedulerConfig config = config_of(3);
  config.largest_kv_blocks = 6;
  config.max_num_batched_tokens = 64;
  Scheduler scheduler(config);
  EXPECT_FALSE(scheduler.add(request(1, counting(20), 6)).ok());  // needs 7 blocks at its end
  ASSERT_TRUE(scheduler.add(request(2, counting(20), 5), 0, 70).ok());
  ASSERT_TRUE(scheduler.add(request(3, counting(4, 50), 3), 0, 80).ok());
  const auto plan = scheduler.next_step(90);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(who(*plan), Ids{3});
  EXPECT_EQ(scheduler.demand().waiting_since_ns, 70);
  EXPECT_EQ(scheduler.demand().blocks_short, 3);  // request 3 needs 5, and 2 are free
  EXPECT_FALSE(scheduler.waits_for_larger_kv());
  complete(scheduler, *plan);
  scheduler.remove(RequestId{3});
  EXPECT_FALSE(scheduler.next_step(100).has_value());
  EXPECT_TRUE(scheduler.waits_for_larger_kv());
  EXPECT_EQ(scheduler.too_large(), std::vector<RequestId>{RequestId{2}});
  EXPECT_EQ(scheduler.demand().blocks_short, 2);
  EXPECT_EQ(scheduler.largest_need(), 6);
  scheduler.grow_kv(5);
  const auto larger = scheduler.next_step(110);
  ASSERT_TRUE(larger.has_value());
  EXPECT_EQ(who(*larger), Ids{2});
  EXPECT_EQ(scheduler.demand().blocks_short, 0);
  EXPECT_EQ(scheduler.demand().waiting_since_ns, -1);
}

TEST(SchedulerKv, ADecodeThatOutgrowsKvWaitsAndPreemptsNoOther) {
  SchedulerConfig config = roomy(6);
  config.largest_kv_blocks = 8;
  Scheduler scheduler(config);
  started(scheduler, 1, 11, 20);
  started(scheduler, 2, 1, 20);
  scheduler.begin_shrink(3);
  const StepPlan plan =
      scheduler.next_step().value();  // request 1 has 13 tokens, and 3 blocks hold 12
  EXPECT_EQ(who(plan), Ids{2});
  EXPECT_EQ(scheduler.observe().preemptions_total, 1);
  EXPECT_EQ(scheduler.too_large(), std::vector<RequestId>{RequestId{1}});
  EXPECT_EQ(scheduler.demand().blocks_short, 2);
  complete(scheduler, plan);
  scheduler.cancel_shrink();
  EXPECT_EQ(who(scheduler.next_step().value()), Ids({2, 1}));
}

TEST(SchedulerKv, WantedBlocksAreThoseOfWaitingSequencesAndNextDecodes) {
  SchedulerConfig config = config_of(6);
  config.max_num_batched_tokens = 64;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(request(1, counting(16), 8)).ok());
  ASSERT_TRUE(scheduler.add(request(2, counting(12, 50), 8)).ok());
  EXPECT_EQ(scheduler.demand().blocks_wanted, 7);
  EXPECT_EQ(scheduler.demand().blocks_short, 1);
  const auto plan = scheduler.next_step();
  EXPECT_EQ(who(*plan), Ids{1});
  EXPECT_EQ(scheduler.demand().blocks_wanted, 3);
  EXPECT_EQ(scheduler.demand().blocks_short, 1);
  complete(scheduler, *plan);
  EXPECT_EQ(scheduler.demand().blocks_wanted, 4);  // request 1's next token begins a block
  EXPECT_EQ(scheduler.demand().blocks_short, 2);
  scheduler.remove(RequestId{1});
  scheduler.remove(RequestId{2});
  EXPECT_EQ(scheduler.demand().blocks_wanted, 0);
}

TEST(SchedulerKv, AShrinkThatInsistsPreemptsTheLast) {
  Scheduler scheduler(config_of(6));
  started(scheduler, 1, 8, 8);
  started(scheduler, 2, 8, 8);
  scheduler.begin_shrink(3);
  while (!scheduler.next_moves(8).empty()) {
  }
  ASSERT_FALSE(scheduler.shrink_ready());
  ASSERT_TRUE(scheduler.preempt_for_shrink());
  EXPECT_EQ(scheduler.observe().waiting, 1);
  while (!scheduler.next_moves(8).empty()) {
  }
  EXPECT_TRUE(scheduler.shrink_ready());
  EXPECT_FALSE(scheduler.preempt_for_shrink());
}

}  // namespace
}  // namespace protean
