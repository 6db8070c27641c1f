// How all sequences of a scheduler go to another one, with their KV in place.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace protean {

SchedulerState Scheduler::release_all() {
  check(in_flight_.empty() && !exchanges_kv() && !shrinking(),
        "a scheduler gives up all at rest only");
  SchedulerState state = counters();
  state.cached = cache_.chains(precision_tag_);
  std::vector<bool> reached(static_cast<std::size_t>(pool_.total()), false);
  for (const CachedBlock& cached : state.cached) {
    reached[static_cast<std::size_t>(cached.block)] = true;
  }
  for (const BlockId block : pool_.free_blocks()) {
    if (reached[static_cast<std::size_t>(block)]) {
      state.idle.push_back(block);
    }
  }
  const auto take = [this](RequestId request) {
    return std::move(sequences_.extract(request).mapped());
  };
  for (const auto& [place, sequence] : running_) {
    for (const BlockId block : sequence->blocks) {
      pool_.release(block);
    }
    sequence->waiting_since_ns = now_ns_;             // if it finds no room where it goes
    if (sequence->precision_tag != precision_tag_) {  // its cached blocks are of no use elsewhere
      sequence->cacheable = false;
      sequence->cached = 0;
    }
    state.running.push_back(take(sequence->asks.id));
  }
  for (const auto& [place, sequence] : waiting_.places()) {
    state.waiting.push_back(take(sequence->asks.id));
  }
  running_.clear();
  waiting_ = {};
  of_call_.clear();
  cache_.clear();
  admit_again();
  decodes_short_ = 0;
  too_large_by_ = 0;
  ++kv_changes_;
  return state;
}

void Scheduler::absorb(SchedulerState state) {
  check(sequences_.empty() && in_flight_.empty() && !exchanges_kv() && !shrinking(),
        "only an empty scheduler takes the place of others");
  latest_.step = std::max(latest_.step, state.last_step);
  hit_share_ = state.hit_share;
  totals_ = state.totals.value_or(totals_);
  exchange_.moved_before_step = state.kv_in_place ? 0 : latest_.step + 1;
  const auto stands_for = absorb_cached(state);
  for (std::unique_ptr<Sequence>& sequence : state.running) {
    sequence->precision_tag = precision_tag_;
    for (std::size_t i = 0; i < sequence->blocks.size(); ++i) {
      BlockId& block = sequence->blocks[i];
      const auto known = stands_for.find(block);
      block = known == stands_for.end() ? block : known->second;
      pool_.acquire(block);
      if (i < sequence->cached && !cache_.has(block)) {  // its hash was taken
        sequence->cached = i;
        sequence->cacheable = false;
      }
    }
    absorb_sequence(std::move(sequence), true);
  }
  for (std::unique_ptr<Sequence>& sequence : state.waiting) {
    absorb_sequence(std::move(sequence), false);
  }
  for (const BlockId block : state.idle) {  // the last one released is the last one allocated
    if (cache_.has(block) && pool_.references(block) == 0) {
      pool_.acquire(block);
      pool_.release(block);
    }
  }
  ++kv_changes_;
}

// Puts the blocks into the prefix cache. Returns the blocks to use for those whose content another
// block has too.
std::unordered_map<BlockId, BlockId> Scheduler::absorb_cached(const SchedulerState& state) {
  std::unordered_map<BlockId, BlockId> stands_for;
  for (const CachedBlock& cached : state.cached) {
    const auto twin = stands_for.find(cached.parent);
    const BlockId parent = twin == stands_for.end() ? cached.parent : twin->second;
    if (!config_.prefix_caching || (parent >= 0 && !cache_.has(parent))) {
      continue;
    }
    const CacheScope scope{.precision_tag = precision_tag_, .salt = cached.salt};
    const BlockId holder = cache_.insert(scope, parent, cached.block, cached.tokens);
    if (holder >= 0 && holder != cached.block) {
      stands_for.emplace(cached.block, holder);
    }
  }
  return stands_for;
}

void Scheduler::absorb_sequence(std::unique_ptr<Sequence> sequence, bool runs) {
  Sequence& absorbed = *sequence;
  check(!absorbed.scheduled() && absorbed.planned == absorbed.computed,
        "an absorbed sequence is in no step");
  latest_.arrival = std::max(latest_.arrival, absorbed.place.arrival);
  absorbed.refused = {};
  absorbed.held_until = 0;
  if (absorbed.asks.call.value != 0) {
    ++of_call_[absorbed.asks.call];
  }
  if (runs) {
    running_.emplace(absorbed.place, &absorbed);
    decodes_short_ += lacks_block(absorbed) ? 1 : 0;
  } else {
    waiting_.add(absorbed, absorbed.waiting_since_ns, blocks_for(std::ssize(absorbed.tokens)));
  }
  const bool fresh = sequences_.emplace(absorbed.asks.id, std::move(sequence)).second;
  check(fresh, "request ids are unique");
}

std::vector<BlockId> Scheduler::live_blocks() const {
  std::vector<BlockId> live;
  for (BlockId block = 0; block < static_cast<BlockId>(pool_.total()); ++block) {
    if (pool_.references(block) > 0 || cache_.has(block)) {
      live.push_back(block);
    }
  }
  return live;
}

std::vector<HeldBlock> Scheduler::held_blocks() const {
  std::vector<HeldBlock> held;
  if (!kv_in_place()) {
    return held;
  }
  std::vector<bool> listed(static_cast<std::size_t>(pool_.total()), false);
  const auto list = [&](BlockId block, int tokens, bool idle) {
    if (!listed[static_cast<std::size_t>(block)]) {
      listed[static_cast<std::size_t>(block)] = true;
      held.push_back({block, pool_.content(block), tokens, idle});
    }
  };
  for (const auto& [place, sequence] : running_) {
    int computed = sequence->computed;
    for (const BlockId block : sequence->blocks) {
      list(block, std::clamp(computed, 0, config_.block_tokens), false);
      computed -= config_.block_tokens;
    }
  }
  const std::vector<BlockId> free = pool_.free_blocks();
  for (auto block = free.rbegin(); block != free.rend(); ++block) {
    if (cache_.follows_its_parent(*block, precision_tag_)) {
      list(*block, config_.block_tokens, true);
    }
  }
  return held;
}

std::int64_t Scheduler::longest() const {
  std::int64_t longest = 0;
  for (const auto& [id, sequence] : sequences_) {
    longest = std::max(longest, std::int64_t{sequence->prompt_tokens} + sequence->asks.max_tokens);
  }
  return longest;
}

}  // namespace protean
