// Which sequences come first, which give up their room, and which wait for a prefix.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "scheduler/scheduler.h"

namespace protean {
namespace {

// Returns the positions that the last `count` of `tokens` attend to.
double context_of(std::int64_t tokens, std::int64_t count) {
  const auto computed = static_cast<double>(count);
  return computed * (static_cast<double>(tokens - count) + (computed + 1) / 2);
}

}  // namespace

Backlog Scheduler::backlog_before(int priority, TimeNs due_ns, std::int64_t tokens) const {
  Backlog backlog{.running = static_cast<int>(running_.size())};
  std::int64_t prompts = 0;
  for (const auto& [place, sequence] : running_) {
    const int left = sequence->uncomputed();
    backlog.decoding += left <= 1 ? 1 : 0;
    backlog.prompts += left <= 1 ? 0 : 1;
    backlog.tokens += left <= 1 ? 0 : left;
    backlog.prompt_context_tokens += left <= 1 ? 0 : context_of(std::ssize(sequence->tokens), left);
    backlog.context_tokens += left <= 1 ? sequence->computed : 0;
    const std::int64_t drawn = std::ssize(sequence->tokens) - sequence->prompt_tokens;
    backlog.drawn_tokens += left <= 1 ? drawn : 0;
    backlog.most_left_tokens += sequence->asks.max_tokens - drawn;
  }
  const double missing = 1.0 - hit_share_;
  std::int64_t places = free_places();
  double blocks = static_cast<double>(pool_.free());
  const auto take_place = [&](std::int64_t to_compute) {
    blocks -= static_cast<double>(blocks_for(to_compute));
    backlog.without_place += --places < 0 || blocks < 0 ? 1 : 0;
  };
  for (const auto& [place, sequence] : waiting_.places()) {
    if (std::pair(place.priority, place.due_ns) >= std::pair(priority, due_ns)) {
      break;
    }
    const auto expected = std::llround(missing * sequence->pending());
    prompts += expected;
    ++backlog.prompts;
    backlog.prompt_context_tokens += context_of(std::ssize(sequence->tokens), expected);
    take_place(expected);
  }
  take_place(tokens);
  backlog.tokens += prompts;
  return backlog;
}

Backlog Scheduler::backlog() const {
  return backlog_before(std::numeric_limits<int>::max(), std::numeric_limits<TimeNs>::max(), 0);
}

std::vector<SequenceNeed> Scheduler::needs() const {
  std::vector<SequenceNeed> needs;
  needs.reserve(sequences_.size());
  const auto add = [&](const Sequence& sequence, bool has_kv) {
    const int tokens = static_cast<int>(sequence.tokens.size());
    needs.push_back({.has_kv = has_kv,
                     .tokens = tokens,
                     .pending = sequence.uncomputed(),
                     .drawn = tokens - sequence.prompt_tokens,
                     .most_drawn = sequence.asks.max_tokens});
  };
  for (const auto& [place, sequence] : running_) {
    add(*sequence, true);
  }
  for (const auto& [place, sequence] : waiting_.places()) {
    add(*sequence, false);
  }
  return needs;
}

// The last running sequence that must give up its room to `waiting`, if there is one.
Sequence* Scheduler::to_displace(const Sequence& waiting) {
  for (auto last = running_.rbegin(); last != running_.rend() && last->first > waiting.place;
       ++last) {
    Sequence& running = *last->second;
    if (running.behind > 0 && !running.scheduled() && running.asks.call != waiting.asks.call) {
      return &running;
    }
  }
  return nullptr;
}

// Returns how many tokens of its prompt the next step can take of a sequence at this place.
int Scheduler::tokens_left_at(const QueuePlace& place) const {
  int decodes = 0;
  int prompts = 0;
  for (const auto& [other_place, running] : running_) {
    const int pending = may_schedule(*running) ? running->pending() : 0;
    decodes += pending == 1 ? 1 : 0;
    prompts += pending > 1 && other_place < place ? pending : 0;
  }
  return budget_.of_prompts(budget_.of_steps(config_.max_num_batched_tokens) - decodes) - prompts;
}

// Admits waiting sequences that come before others of a call with several, as far as the next
// step can take them, and preempts the latter as far as that needs.
void Scheduler::displace_for_waiting() {
  if (of_call_.empty() || admits_none()) {
    return;
  }
  int passed_over = 0;
  for (auto next = waiting_.places().begin();
       next != waiting_.places().end() && passed_over < kPassedOver;) {
    Sequence& sequence = *next++->second;
    if (!fits_now(sequence) || to_displace(sequence) == nullptr || waits_for_prefix(sequence)) {
      ++passed_over;
      continue;
    }
    if (tokens_left_at(sequence.place) <= 0) {
      return;
    }
    bool entered = enter(sequence);
    for (Sequence* other = nullptr; !entered && (other = to_displace(sequence)) != nullptr;) {
      preempt(*other);
      entered = enter(sequence);
    }
    if (!entered) {
      return;
    }
  }
}

// Returns true if the sequence waits for a larger KV or, which `passed_over` counts, for a prefix.
// The sequences behind it need not wait for either.
bool Scheduler::must_wait(Sequence& sequence, int& passed_over) {
  if (!fits_now(sequence)) {
    return true;
  }
  const bool waits = passed_over < kPassedOver && waits_for_prefix(sequence);
  passed_over += waits ? 1 : 0;
  return waits;
}

// Admits the sequence and moves it to the running ones. Returns false if it has no place or no KV.
bool Scheduler::enter(Sequence& sequence) {
  if (!has_place() || !admit(sequence)) {
    return false;
  }
  waiting_.remove(sequence);
  running_.emplace(sequence.place, &sequence);
  return true;
}

void Scheduler::admit_waiting(StepPlan& plan) {
  int passed_over = 0;
  for (auto next = waiting_.places().begin();
       next != waiting_.places().end() && has_room(plan) && has_place();) {
    Sequence& sequence = *next++->second;
    if (must_wait(sequence, passed_over)) {
      continue;
    }
    if (passed_over == kPassedOver || !enter(sequence)) {
      return;
    }
    schedule(plan, sequence);
  }
}

// Returns true if the sequence runs and will put its first `blocks` blocks into the prefix cache.
bool Scheduler::will_publish(const Sequence& sequence, std::size_t blocks) const {
  return running_.contains(sequence.place) && sequence.cacheable &&
         sequence.precision_tag == precision_tag_ && sequence.cached < blocks;
}

// Returns true if an earlier running sequence computes a prefix that this one can reuse. Only
// earlier ones count, so that a sequence never waits for one that came later.
bool Scheduler::waits_for_prefix(Sequence& sequence) {
  if (sequence.held_until > 0) {
    const auto holder = sequences_.find(sequence.held_by);
    if (holder != sequences_.end() && will_publish(*holder->second, sequence.held_until)) {
      return true;
    }
    sequence.held_until = 0;
  }
  const auto reusable =
      std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.reusable()));
  const auto block_tokens = static_cast<std::size_t>(config_.block_tokens);
  if (!config_.prefix_caching || reusable.size() < block_tokens) {
    return false;
  }
  for (const auto& [place, running] : running_) {
    if (place > sequence.place) {
      break;
    }
    const bool writing = running->cached < running->tokens.size() / block_tokens;
    if (!writing || running->asks.cache_salt != sequence.asks.cache_salt) {
      continue;
    }
    const auto differs = std::mismatch(reusable.begin(), reusable.end(), running->tokens.begin(),
                                       running->tokens.end());
    const auto shared = static_cast<std::size_t>(differs.first - reusable.begin()) / block_tokens;
    if (shared > sequence.held_until && will_publish(*running, shared)) {
      sequence.held_by = running->asks.id;
      sequence.held_until = shared;
    }
  }
  CacheScope scope{.precision_tag = precision_tag_, .salt = sequence.asks.cache_salt};
  if (sequence.held_until > 0 && match(scope, reusable).size() >= sequence.held_until) {
    sequence.held_until = 0;  // another sequence has computed it
  }
  return sequence.held_until > 0;
}

// Preempts for the decode of `sequence`. Returns false if the sequence itself was preempted or none
// can be. A sequence that KV cannot hold even alone is preempted itself. If all that come later are
// in steps in flight, the sequence waits for one of them: it must not give its blocks to them.
bool Scheduler::make_room(Sequence& sequence) {
  if (!fits_now(sequence)) {
    preempt(sequence);
    return false;
  }
  const auto last = std::prev(running_.end())->second;
  const auto victim = std::find_if(running_.rbegin(), running_.rend(),
                                   [](const auto& entry) { return !entry.second->scheduled(); });
  // Blocks that are lent or received come back without a preemption too.
  const bool some_come_back = last->scheduled() || exchanges_kv();
  if (victim == running_.rend() || (victim->second == &sequence && some_come_back)) {
    return false;
  }
  preempt(*victim->second);
  return running_.contains(sequence.place);
}

// Preempts the last running sequence that is in no plan. Returns false if there is none.
bool Scheduler::preempt_last() {
  for (auto place = running_.rbegin(); place != running_.rend(); ++place) {
    if (!place->second->scheduled()) {
      preempt(*place->second);
      return true;
    }
  }
  return false;
}

void Scheduler::preempt(Sequence& sequence) {
  leave(sequence);
  sequence.computed = sequence.planned = 0;
  ++sequence.usage.preemptions;
  ++totals_.preemptions_total;
  enqueue(sequence);
}

}  // namespace protean
