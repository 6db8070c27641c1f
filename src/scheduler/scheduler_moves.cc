// How sequences leave one scheduler for another, with or without their KV.

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace protean {

const Sequence* Scheduler::first_movable(std::int64_t free_blocks) const {
  const std::int64_t most = std::max(pool_.limit(), free_blocks);
  for (const auto& [place, sequence] : waiting_.places()) {
    if (sequence->held_until == 0 && blocks_for(std::ssize(sequence->tokens)) <= most) {
      return sequence;
    }
  }
  return nullptr;
}

std::unique_ptr<Sequence> Scheduler::release(RequestId request) {
  const auto found = sequences_.find(request);
  check(found != sequences_.end() && !found->second->scheduled(),
        "a sequence is in no step when it is released");
  std::unique_ptr<Sequence> sequence = std::move(found->second);
  sequences_.erase(found);
  if (running_.contains(sequence->place)) {
    leave(*sequence);
  } else {
    waiting_.remove(*sequence);
  }
  leave_call(*sequence);
  ++totals_.released_total;
  return sequence;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::abandon() {
  give_back(std::vector<BlockId>(exchange_.lent));
  exchange_ = {};
  in_flight_.clear();
  while (!running_.empty()) {
    preempt(*running_.rbegin()->second);
  }
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (const auto& [place, sequence] : waiting_.places()) {
    sequence->in_steps = 0;
    sequence->failed = false;
    sequences.push_back(std::move(sequences_.extract(sequence->asks.id).mapped()));
  }
  waiting_ = {};
  of_call_.clear();
  cache_.clear();
  too_large_by_ = 0;
  ++kv_changes_;
  totals_.released_total += std::ssize(sequences);
  return sequences;
}

void Scheduler::adopt(std::unique_ptr<Sequence> sequence, std::vector<BlockId> blocks,
                      TimeNs now_ns) {
  now_ns_ = now_ns;
  Sequence& adopted = *sequence;
  adopted.behind = adopted.asks.call.value != 0 ? of_call_[adopted.asks.call]++ : 0;
  adopted.place.arrival = ++latest_.arrival;
  adopted.refused = {};
  adopted.held_until = 0;
  if (blocks.empty()) {
    adopted.computed = 0;
    adopted.planned = 0;
    if (adopted.usage.output_tokens > 0) {  // its answer goes on before others begin
      adopted.place.due_ns = std::numeric_limits<TimeNs>::min();
    }
    enqueue(adopted);
  } else {
    check(std::ssize(blocks) == blocks_for(adopted.computed), "all KV of the sequence has arrived");
    adopted.blocks = std::move(blocks);
    // Tag 0 is full precision, for all replicas and groups. Other tags are of one engine.
    adopted.cacheable = config_.prefix_caching && adopted.cacheable && adopted.precision_tag == 0 &&
                        precision_tag_ == 0;
    adopted.precision_tag = precision_tag_;
    running_.emplace(adopted.place, &adopted);
    decodes_short_ += lacks_block(adopted) ? 1 : 0;
    --exchange_.kept_places;
    ++totals_.adopted_with_kv_total;
  }
  const bool fresh = sequences_.emplace(adopted.asks.id, std::move(sequence)).second;
  check(fresh, "request ids are unique");
  ++totals_.adopted_total;
}

std::optional<Scheduler::Decoding> Scheduler::decoding(RequestId request) const {
  const auto found = sequences_.find(request);
  if (found == sequences_.end() || shrinking() || !kv_in_place()) {
    return std::nullopt;
  }
  const Sequence& sequence = *found->second;
  const bool decodes = running_.contains(sequence.place) && sequence.uncomputed() == 1 &&
                       sequence.usage.output_tokens > 0 && !sequence.failed;
  if (!decodes) {
    return std::nullopt;
  }
  return Decoding{.computed = sequence.computed,
                  .prompt_tokens = sequence.prompt_tokens,
                  .max_tokens = sequence.asks.max_tokens,
                  .preemptions = sequence.usage.preemptions,
                  .in_step = sequence.scheduled()};
}

std::vector<RequestId> Scheduler::all_decoding() const {
  std::vector<std::tuple<int, int, RequestId>> found;
  for (const auto& [place, sequence] : running_) {
    if (decoding(sequence->asks.id)) {
      found.emplace_back(-place.priority, sequence->computed, sequence->asks.id);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<RequestId> requests;
  for (const auto& [last, computed, request] : found) {
    requests.push_back(request);
  }
  return requests;
}

void Scheduler::pause(RequestId request) {
  resume(request);
  exchange_.paused.push_back(request);
}

bool Scheduler::is_paused(const Sequence& sequence) const {
  const std::vector<RequestId>& paused = exchange_.paused;
  return std::find(paused.begin(), paused.end(), sequence.asks.id) != paused.end();
}

std::vector<BlockId> Scheduler::lend(RequestId request, std::size_t first, std::size_t count) {
  const std::vector<BlockId>& blocks = sequences_.at(request)->blocks;
  check(first + count <= blocks.size(), "a sequence lends blocks that it has");
  const auto begin = blocks.begin() + static_cast<std::ptrdiff_t>(first);
  std::vector<BlockId> lent(begin, begin + static_cast<std::ptrdiff_t>(count));
  lend(lent);
  return lent;
}

void Scheduler::lend(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    pool_.acquire(block);
  }
  exchange_.lent.insert(exchange_.lent.end(), blocks.begin(), blocks.end());
}

void Scheduler::give_back(std::span<const BlockId> lent) {
  for (const BlockId block : lent) {
    const auto loan = std::find(exchange_.lent.begin(), exchange_.lent.end(), block);
    check(loan != exchange_.lent.end(), "only what was lent is given back");
    exchange_.lent.erase(loan);
    release(block);
  }
}

bool Scheduler::keep_place() {
  if (!has_place()) {
    return false;
  }
  ++exchange_.kept_places;
  return true;
}

std::optional<std::vector<BlockId>> Scheduler::receive(std::int64_t count) {
  if (!could_receive(count)) {
    return std::nullopt;
  }
  std::vector<BlockId> blocks;
  for (std::int64_t i = 0; i < count; ++i) {
    blocks.push_back(pool_.allocate().value());
    cache_.forget(blocks.back());
  }
  return blocks;
}

std::vector<OwnKv> Scheduler::own_kv() const {
  std::vector<OwnKv> all;
  for (const auto& [place, sequence] : running_) {
    const std::vector<BlockId>& blocks = sequence->blocks;
    if (std::ranges::all_of(blocks, [&](BlockId block) { return pool_.references(block) == 1; })) {
      all.push_back({.request = sequence->asks.id,
                     .blocks = std::ssize(blocks),
                     .tokens = sequence->computed});
    }
  }
  return all;
}

void Scheduler::give_up_kv(const std::vector<RequestId>& requests) {
  for (const RequestId request : requests) {
    Sequence& sequence = *sequences_.at(request);
    check(!sequence.scheduled(), "a sequence in a step keeps its KV");
    forget_blocks(sequence);
    preempt(sequence);
  }
  exchange_.admits_none = true;
}

std::int64_t Scheduler::idle_blocks() const {
  const std::vector<BlockId> free = pool_.free_blocks();
  return std::ranges::count_if(free, [this](BlockId block) { return cache_.has(block); });
}

void Scheduler::forget_idle() {
  for (const BlockId block : pool_.free_blocks()) {
    cache_.forget(block);
  }
}

void Scheduler::drop(std::span<const BlockId> received) {
  for (const BlockId block : received) {
    release(block);
  }
}

}  // namespace protean
