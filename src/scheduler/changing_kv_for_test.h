#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/simulated_kv.h"

// For the property test: KV that grows and shrinks at random, as steps of a morph would have it.

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

// How often the interesting things happened, so that the test notices if it stops provoking them.
struct Coverage {
  std::int64_t reused_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t failed_steps = 0;
  std::int64_t failed_alone = 0;  // requests of steps that went well
  std::int64_t tag_changes = 0;
  std::int64_t steps_behind_others = 0;  // planned while another was in flight
  std::int64_t scored_tokens = 0;
  std::int64_t pooled_again = 0;  // sums begun anew
  std::int64_t passed_over = 0;   // waited for a prefix while others were admitted
  std::int64_t shared_prompts = 0;
  std::int64_t grows = 0;
  std::int64_t shrinks = 0;  // finished
  std::int64_t cancelled_shrinks = 0;
  std::int64_t moved_blocks = 0;
  std::int64_t waits_for_larger_kv = 0;
};

// Tells the scheduler at once and the simulated KV in its turn: after the steps planned so far,
// before those to come.
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
  std::int64_t limit() const { return limit_; }  // below it they stay

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

  // There before it is published.
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
