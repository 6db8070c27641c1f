// How the scheduler finds cached blocks and changes the size of KV (MorphServe section 4.4).

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/units.h"
#include "scheduler/scheduler.h"

namespace protean {

std::int64_t Scheduler::blocks_for(std::int64_t tokens) const {
  return ceil_div(tokens, std::int64_t{config_.block_tokens});
}

// Returns cached blocks for the beginning of `tokens`. Leaving blocks are not reused.
std::vector<BlockId> Scheduler::match(const CacheScope& scope,
                                      std::span<const TokenId> tokens) const {
  std::vector<BlockId> chain = cache_.match(scope, tokens);
  chain.erase(std::find_if(chain.begin(), chain.end(),
                           [this](BlockId block) { return pool_.leaves(block); }),
              chain.end());
  return chain;
}

void Scheduler::release(BlockId block) {
  pool_.release(block);
  if (pool_.leaves(block) && pool_.references(block) == 0) {
    cache_.forget(block);
  }
}

// Releases the last block first: the pool allocates blocks in the order of release, and the
// beginning of a chain is worth more than its end.
void Scheduler::release_blocks(Sequence& sequence) {
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
    release(*block);
  }
  sequence.blocks.clear();
  sequence.cached = 0;
}

// Returns the number of blocks that stay free for the running sequences, else a decode would
// preempt at once, and for leaving blocks to move to.
std::int64_t Scheduler::free_reserve() const {
  return running_.empty() ? 0 : pool_.limit() / 100 + pool_.leaving();
}

void Scheduler::enqueue(Sequence& sequence) {
  waiting_.add(sequence, now_ns_, blocks_for(std::ssize(sequence.tokens)));
}

// Removes a sequence from the running ones and releases its blocks.
void Scheduler::leave(Sequence& sequence) {
  decodes_short_ -= lacks_block(sequence) ? 1 : 0;
  resume(sequence.asks.id);
  release_blocks(sequence);
  running_.erase(sequence.place);
}

bool Scheduler::lacks_block(const Sequence& sequence) const {
  return std::ssize(sequence.blocks) < blocks_for(std::ssize(sequence.tokens));
}

// Returns true if the present KV could hold the sequence alone.
bool Scheduler::fits_now(const Sequence& sequence) {
  const std::int64_t beyond = blocks_for(std::ssize(sequence.tokens)) - pool_.limit();
  too_large_by_ = std::max(too_large_by_, beyond);
  return beyond <= 0;
}

void Scheduler::grow_kv(std::int64_t blocks) {
  pool_.grow(blocks);
  cache_.grow(blocks);
  ++kv_changes_;
}

void Scheduler::begin_shrink(std::int64_t blocks) {
  pool_.begin_shrink(blocks);
  for (auto block = static_cast<BlockId>(blocks); block < pool_.total(); ++block) {
    if (pool_.references(block) == 0) {
      cache_.forget(block);
    }
  }
  ++kv_changes_;
}

std::vector<BlockMove> Scheduler::next_moves(std::int64_t limit) {
  std::vector<BlockMove> moves;
  if (pool_.leaving() == 0) {
    return moves;
  }
  for (const auto& [place, sequence] : running_) {
    for (BlockId& block : sequence->blocks) {
      const std::vector<BlockId>& lent = exchange_.lent;
      if (!pool_.leaves(block) || std::find(lent.begin(), lent.end(), block) != lent.end()) {
        continue;  // what is lent stays where it is
      }
      if (pool_.references(block) == 0) {  // another sequence shares the block, and it has moved
        const auto moved = std::find_if(moves.begin(), moves.end(),
                                        [&](const BlockMove& move) { return move.from == block; });
        block = moved->to;
      } else if (std::ssize(moves) < limit && pool_.free() > 0) {
        const BlockId to = pool_.vacate(block).value();
        cache_.forget(to);
        cache_.move(block, to);
        moves.push_back({.from = block, .to = to});
        block = to;
      }
    }
  }
  kv_changes_ += moves.size();
  if (!moves.empty()) {
    exchange_.moved_before_step = latest_.step + 1;
  }
  return moves;
}

bool Scheduler::preempt_for_shrink() {
  return pool_.leaving() > 0 && pool_.free() == 0 && preempt_last();
}

void Scheduler::finish_shrink() {
  pool_.finish_shrink();
  ++kv_changes_;
}

void Scheduler::cancel_shrink() {
  pool_.cancel_shrink();
  ++kv_changes_;
}

// The last token is never fed back, so it needs no KV.
std::int64_t Scheduler::blocks_to_end(std::int64_t prompt, std::int64_t max_tokens) const {
  return blocks_for(std::max(prompt, prompt + max_tokens - 1));
}

std::int64_t Scheduler::largest_need() const {
  std::int64_t largest = 0;
  for (const auto& [id, sequence] : sequences_) {
    largest = std::max(largest, blocks_to_end(sequence->prompt_tokens, sequence->asks.max_tokens));
  }
  return largest;
}

Demand Scheduler::demand() const {
  Demand demand;
  double waiting_need = 0;
  if (!waiting_.empty()) {
    const auto waiting = static_cast<double>(waiting_.size());
    const auto places =
        static_cast<double>(config_.max_num_seqs) - static_cast<double>(running_.size());
    const double admissible = std::clamp(places / waiting, 0.0, 1.0);
    waiting_need = (1.0 - hit_share_) * admissible * static_cast<double>(waiting_.blocks());
  }
  demand.waiting_since_ns = waiting_.since_ns();
  const std::int64_t available = pool_.free() - pool_.leaving();
  demand.blocks_wanted = static_cast<std::int64_t>(std::llround(waiting_need)) + decodes_short_;
  if (too_large_by_ > 0) {
    demand.blocks_wanted = std::max(demand.blocks_wanted, too_large_by_ + available);
  }
  demand.blocks_short = std::max(std::int64_t{0}, demand.blocks_wanted - available);
  return demand;
}

bool Scheduler::waits_for_larger_kv() const {
  return running_.empty() && in_flight_.empty() && !waiting_.empty() &&
         too_large().size() == waiting_.size();
}

std::vector<RequestId> Scheduler::too_large() const {
  std::vector<RequestId> found;
  for (const auto& [place, sequence] : waiting_.places()) {
    if (blocks_for(std::ssize(sequence->tokens)) > pool_.limit()) {
      found.push_back(sequence->asks.id);
    }
  }
  return found;
}

}  // namespace protean
