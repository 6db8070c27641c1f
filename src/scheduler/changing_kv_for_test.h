#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/simulated_kv_for_test.h"

// KV that grows and shrinks at random, as in a morph, for the property test.

namespace protean {

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int below(std::int64_t limit) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937 random_;
};

// Counts of what the test must provoke.
struct Coverage {
  std::int64_t reused_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t failed_steps = 0;
  std::int64_t failed_alone = 0;  // requests that failed in a step that did not
  std::int64_t tag_changes = 0;
  std::int64_t steps_behind_others = 0;  // planned while another step was in flight
  std::int64_t chunks_in_flight = 0;     // of a prompt of which a chunk was in flight
  std::int64_t scored_tokens = 0;
  std::int64_t pooled_again = 0;  // sums that began again
  std::int64_t passed_over = 0;   // waited while later sequences were admitted
  std::int64_t shared_prompts = 0;
  std::int64_t grows = 0;
  std::int64_t shrinks = 0;  // finished shrinks
  std::int64_t cancelled_shrinks = 0;
  std::int64_t moved_blocks = 0;
  std::int64_t waits_for_larger_kv = 0;
};

// Changes the scheduler's KV at once, and the simulated KV after the steps planned so far and
// before later ones.
class ChangingKv {
 public:
  using Steps = std::deque<Step>;

  ChangingKv(const SchedulerConfig& config, Scheduler& scheduler)
      : scheduler_(scheduler),
        largest_(config.largest_kv_blocks),
        blocks_(config.kv_blocks),
        limit_(config.kv_blocks),
        content_(config) {}

  SimulatedKv& content() { return content_; }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t limit() const { return limit_; }  // blocks below it stay

  void change(Dice& dice, Steps& steps, Coverage& coverage) {
    if (scheduler_.shrink_ready()) {
      scheduler_.finish_shrink();
      blocks_ = limit_;
      in_order(Resize{blocks_}, steps);
      ++coverage.shrinks;
    } else if (scheduler_.shrinking()) {
      shrink_on(dice, steps, coverage);
    } else if (dice.chance(50) && blocks_ < largest_) {
      grow_to(blocks_ + 1 + dice.below(largest_ - blocks_), steps);
      ++coverage.grows;
    } else if (blocks_ > 1) {
      limit_ = 1 + dice.below(blocks_ - 1);
      scheduler_.begin_shrink(limit_);
      move(dice.below(4), steps, coverage);
    }
  }

  // The simulated blocks are there before the scheduler learns of them.
  void grow_to(std::int64_t blocks, Steps& steps) {
    if (scheduler_.shrinking()) {
      scheduler_.cancel_shrink();
    }
    limit_ = blocks;
    if (blocks > blocks_) {
      blocks_ = blocks;
      in_order(Resize{blocks}, steps);
      scheduler_.grow_kv(blocks);
    }
  }

  void after(const Step& step) {
    for (const KvEdit& edit : step.edits) {
      apply(edit);
    }
  }

 private:
  void shrink_on(Dice& dice, Steps& steps, Coverage& coverage) {
    if (dice.chance(20)) {
      scheduler_.cancel_shrink();
      limit_ = blocks_;
      ++coverage.cancelled_shrinks;
      return;
    }
    if (dice.chance(15)) {
      scheduler_.preempt_for_shrink();
    }
    move(1 + dice.below(8), steps, coverage);
  }

  void move(int at_most, Steps& steps, Coverage& coverage) {
    std::vector<BlockMove> moves = scheduler_.next_moves(at_most);
    ASSERT_LE(std::ssize(moves), at_most);
    for (const BlockMove& move : moves) {
      ASSERT_TRUE(move.from >= limit_ && move.from < blocks_);
      ASSERT_TRUE(move.to >= 0 && move.to < limit_);
      ++coverage.moved_blocks;
    }
    in_order(std::move(moves), steps);
  }

  void in_order(KvEdit edit, Steps& steps) {
    if (steps.empty() || steps.back().executed) {
      apply(edit);
    } else {
      steps.back().edits.push_back(std::move(edit));
    }
  }

  void apply(const KvEdit& edit) {
    if (const auto* resize = std::get_if<Resize>(&edit)) {
      content_.resize(resize->blocks);
      return;
    }
    for (const BlockMove& move : std::get<std::vector<BlockMove>>(edit)) {
      content_.move(move);
    }
  }

  Scheduler& scheduler_;
  const std::int64_t largest_;
  std::int64_t blocks_;
  std::int64_t limit_;
  SimulatedKv content_;
};

}  // namespace protean
