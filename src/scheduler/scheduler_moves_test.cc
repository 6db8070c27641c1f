// Tests sequences that leave a scheduler, and the blocks and places that live migrations hold.

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_scene_for_test.h"

namespace protean {
namespace {

// Adds a request and draws its first token.
void decode_first(Scheduler& scheduler, std::uint64_t id, int prompt, int max_tokens = 20) {
  const auto tokens = counting(prompt, static_cast<TokenId>(100 * id));
  ASSERT_TRUE(scheduler.add(request(id, tokens, max_tokens)).ok());
  complete(scheduler, scheduler.next_step().value());
}

TEST(SchedulerMoves, LentBlocksKeepTheirContentWhateverBecomesOfTheSequence) {
  Scheduler scheduler(roomy(4));
  decode_first(scheduler, 1, 8, 4);
  const auto lent = scheduler.lend(RequestId{1}, 0, 2);
  scheduler.remove(RequestId{1});
  EXPECT_EQ(scheduler.observe().kv_blocks_used, 2);
  ASSERT_TRUE(scheduler.add(request(2, counting(12), 1)).ok());
  EXPECT_FALSE(scheduler.next_step().has_value()) << "two blocks of three are free";
  EXPECT_TRUE(scheduler.exchanges_kv());
  scheduler.give_back(lent);
  EXPECT_FALSE(scheduler.exchanges_kv());
  EXPECT_TRUE(scheduler.next_step().has_value());
}

TEST(SchedulerMoves, WhatComesLastAndIsShortestMovesFirst) {
  Scheduler scheduler(roomy(40));
  const int priorities[] = {0, 5, 0, 5};
  const int prompts[] = {8, 24, 4, 16};
  for (std::size_t i = 0; i < 4; ++i) {
    Request asked = request(i + 1, counting(prompts[i], static_cast<TokenId>(100 * i)), 20);
    asked.priority = priorities[i];
    ASSERT_TRUE(scheduler.add(std::move(asked)).ok());
  }
  complete(scheduler, scheduler.next_step().value());
  EXPECT_EQ(scheduler.all_decoding(),
            std::vector<RequestId>({RequestId{4}, RequestId{2}, RequestId{3}, RequestId{1}}));
}

TEST(SchedulerMoves, AShrinkWaitsForLentBlocks) {
  Scheduler scheduler(roomy(8));
  decode_first(scheduler, 1, 8);
  decode_first(scheduler, 2, 8);
  const auto lent = scheduler.lend(RequestId{2}, 0, 1);
  ASSERT_EQ(lent, (std::vector<BlockId>{3}));  // request 1 has 0 to 2
  scheduler.remove(RequestId{1});
  scheduler.begin_shrink(3);
  std::vector<BlockMove> moves = scheduler.next_moves(8);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].from, 4);
  EXPECT_FALSE(scheduler.decoding(RequestId{2}).has_value()) << "its blocks move";
  EXPECT_FALSE(scheduler.shrink_ready());
  scheduler.give_back(lent);
  moves = scheduler.next_moves(8);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].from, 3);
  EXPECT_TRUE(scheduler.shrink_ready());
  scheduler.finish_shrink();
  EXPECT_FALSE(scheduler.decoding(RequestId{2}).has_value()) << "not before the moves are done";
}

TEST(SchedulerMoves, APausedSequenceIsInNoStep) {
  Scheduler scheduler(roomy(16));
  decode_first(scheduler, 1, 8);
  scheduler.pause(RequestId{1});
  EXPECT_FALSE(scheduler.next_step().has_value());
  decode_first(scheduler, 2, 8);
  EXPECT_EQ(who(scheduler.next_step().value()), (std::vector<std::uint64_t>{2}));
  scheduler.resume(RequestId{1});
  EXPECT_EQ(who(scheduler.next_step().value()), (std::vector<std::uint64_t>{1}));
}

TEST(SchedulerMoves, APausedSequenceThatIsRemovedIsForgotten) {
  Scheduler scheduler(roomy(16));
  decode_first(scheduler, 1, 8);
  scheduler.pause(RequestId{1});
  scheduler.remove(RequestId{1});
  EXPECT_FALSE(scheduler.exchanges_kv());
}

TEST(SchedulerMoves, AKeptPlaceIsNotGivenToOthers) {
  SchedulerConfig config = roomy(32);
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  decode_first(scheduler, 1, 8);
  ASSERT_TRUE(scheduler.keep_place());
  EXPECT_FALSE(scheduler.keep_place());
  ASSERT_TRUE(scheduler.add(request(2, counting(5), 4)).ok());
  const StepPlan step = scheduler.next_step().value();
  EXPECT_EQ(who(step), (std::vector<std::uint64_t>{1}));
  scheduler.give_up_place();
  complete(scheduler, step);
  EXPECT_EQ(who(scheduler.next_step().value()), (std::vector<std::uint64_t>{1, 2}));
}

TEST(SchedulerMoves, AnAdoptedSequenceGoesOnAfterItsLastToken) {
  Scheduler from(roomy(16));
  Scheduler to(roomy(16));
  decode_first(from, 1, 9);
  const auto decoding = from.decoding(RequestId{1});
  ASSERT_TRUE(decoding.has_value());
  EXPECT_EQ(decoding->computed, 9);
  ASSERT_TRUE(to.keep_place());
  auto blocks = to.receive(3).value();
  to.adopt(from.release(RequestId{1}), blocks, 0);
  EXPECT_TRUE(from.idle());
  EXPECT_EQ(from.observe().kv_blocks_used, 0);
  const StepPlan step = to.next_step().value();
  EXPECT_EQ(step.tokens, std::vector<TokenId>{99});
  EXPECT_EQ(step.slices[0].first_position, 9);
  EXPECT_EQ(step.blocks, blocks);
  EXPECT_EQ(to.observe().adopted_with_kv_total, 1);
  complete(to, step);
  EXPECT_EQ(to.remove(RequestId{1})->output_tokens, 2);
  EXPECT_EQ(to.observe().kv_blocks_used, 0);
}

TEST(SchedulerMoves, ABlockTableThatIsNotReceivedIsComputedAgain) {
  Scheduler from(roomy(16));
  Scheduler to(roomy(16));
  decode_first(from, 1, 9);
  to.adopt(from.release(RequestId{1}), {}, 0);
  const StepPlan step = to.next_step().value();
  EXPECT_EQ(step.tokens.size(), 10U);
  EXPECT_EQ(step.samples[0].position, 10);
  EXPECT_EQ(to.observe().adopted_total, 1);
  EXPECT_EQ(to.observe().adopted_with_kv_total, 0);
}

TEST(SchedulerMoves, AnAnswerThatHasBegunGoesOnBeforeOthersBegin) {
  Scheduler from(roomy(16));
  SchedulerConfig one_place = roomy(16);
  one_place.max_num_seqs = 1;
  Scheduler to(one_place);
  decode_first(from, 1, 9);
  ASSERT_TRUE(from.add(request(2, counting(5, 500), 4)).ok());
  ASSERT_TRUE(to.add(request(3, counting(5, 700), 4)).ok());
  to.adopt(from.release(RequestId{2}), {}, 0);
  to.adopt(from.release(RequestId{1}), {}, 0);
  for (const std::uint64_t next : {1, 3, 2}) {
    const StepPlan step = to.next_step().value();
    EXPECT_EQ(who(step), std::vector{next});
    complete(to, step);
    to.remove(RequestId{next});
  }
}

TEST(SchedulerMoves, ASequenceThatGivesUpItsKvWaits) {
  Scheduler scheduler(roomy(16));
  decode_first(scheduler, 1, 9);
  decode_first(scheduler, 2, 9);
  scheduler.give_up_kv({RequestId{1}});
  EXPECT_EQ(scheduler.live_blocks().size(), 3U) << "request 2 has three";
  EXPECT_EQ(scheduler.observe().waiting, 1);
  EXPECT_EQ(scheduler.observe().preemptions_total, 1);
  EXPECT_EQ(who(scheduler.next_step().value()), (std::vector<std::uint64_t>{2}));
  EXPECT_FALSE(scheduler.next_step().has_value());
  scheduler.admit_again();
  const StepPlan step = scheduler.next_step().value();
  EXPECT_EQ(who(step), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(step.tokens.size(), 11U) << "it drew two";
  EXPECT_EQ(step.samples[0].position, 11);
}

TEST(SchedulerMoves, ASequenceThatGaveUpItsKvWaitsInNoStateThatAnotherTakes) {
  Scheduler from(roomy(16));
  Scheduler to(roomy(16));
  decode_first(from, 1, 9);
  from.give_up_kv({RequestId{1}});
  EXPECT_TRUE(from.admits_none());
  to.absorb(from.release_all());
  EXPECT_FALSE(from.admits_none());
  EXPECT_EQ(who(to.next_step().value()), (std::vector<std::uint64_t>{1}));
}

// Sequences that wait and sequences that arrive stay out, also once the one that gave up its KV has
// been removed.
TEST(SchedulerMoves, NoSequenceIsAdmittedWhileOthersHaveGivenUpTheirKv) {
  Scheduler scheduler(roomy(16));
  decode_first(scheduler, 1, 9);
  decode_first(scheduler, 2, 9);
  ASSERT_TRUE(scheduler.add(request(3, counting(5, 300), 4)).ok());
  scheduler.give_up_kv({RequestId{1}});
  ASSERT_TRUE(scheduler.add(request(4, counting(5, 400), 4)).ok());
  EXPECT_GT(scheduler.backlog().without_place, 0);
  EXPECT_FALSE(scheduler.keep_place());
  scheduler.remove(RequestId{1});
  const StepPlan meanwhile = scheduler.next_step().value();
  EXPECT_EQ(who(meanwhile), (std::vector<std::uint64_t>{2}));
  complete(scheduler, meanwhile);
  scheduler.admit_again();
  EXPECT_EQ(who(scheduler.next_step().value()), (std::vector<std::uint64_t>{2, 3, 4}));
}

TEST(SchedulerMoves, NoSequenceGivesItsRoomToOneThatGaveUpItsKv) {
  Scheduler scheduler(roomy(16));
  ASSERT_TRUE(scheduler.add(request(1, counting(5), 4)).ok());
  for (const std::uint64_t id : {2, 3}) {  // choices of one call
    Request choice = request(id, counting(5, static_cast<TokenId>(100 * id)), 4);
    choice.call = RequestId{2};
    ASSERT_TRUE(scheduler.add(std::move(choice)).ok());
  }
  complete(scheduler, scheduler.next_step().value());
  scheduler.give_up_kv({RequestId{1}});
  EXPECT_EQ(who(scheduler.next_step().value()), (std::vector<std::uint64_t>{2, 3}));
}

// The last one that gives up a shared prefix would lose it for all.
TEST(SchedulerMoves, SequencesThatShareBlocksKeepThem) {
  Scheduler scheduler(roomy(16));
  decode_first(scheduler, 1, 9);
  ASSERT_TRUE(scheduler.add(request(2, counting(10, 100), 4)).ok());  // 8 tokens are cached
  complete(scheduler, scheduler.next_step().value());
  decode_first(scheduler, 3, 9);
  const std::vector<OwnKv> own = scheduler.own_kv();
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(own[0].request, RequestId{3});
  EXPECT_EQ(own[0].tokens, 9);
  EXPECT_EQ(own[0].blocks, 3);
}

TEST(SchedulerMoves, WhatIsOnlyCachedCanBeForgotten) {
  Scheduler scheduler(roomy(16));
  decode_first(scheduler, 1, 9);
  decode_first(scheduler, 2, 9);
  scheduler.remove(RequestId{1});
  EXPECT_EQ(scheduler.idle_blocks(), 2);
  scheduler.forget_idle();
  EXPECT_EQ(scheduler.idle_blocks(), 0);
  EXPECT_EQ(scheduler.live_blocks().size(), 3U);
}

TEST(SchedulerMoves, NothingIsReceivedThatRunningSequencesWouldLack) {
  Scheduler scheduler(roomy(200));
  decode_first(scheduler, 1, 8);
  const auto reserve = scheduler.receive(197);
  EXPECT_FALSE(reserve.has_value()) << "a hundredth stays free for decodes";
  const auto most = scheduler.receive(196);
  ASSERT_TRUE(most.has_value());
  scheduler.drop(*most);
  EXPECT_EQ(scheduler.observe().kv_blocks_used, 2);
}

}  // namespace
}  // namespace protean
