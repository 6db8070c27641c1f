// What the next step takes of ready work, by the heuristics of KunServe's released code.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/microbatches.h"
#include "scheduler/scheduler.h"

namespace protean {
namespace {

// Returns what the steps have that may be in flight together, the next one first. `load_of` returns
// the load of a slice.
template <typename Steps, typename LoadOf>
std::vector<std::int64_t> loads_of(const Steps& in_flight, int stages, const LoadOf& load_of) {
  std::vector<std::int64_t> loads(std::max(static_cast<std::size_t>(stages), in_flight.size() + 1));
  auto load = loads.rbegin();
  for (const auto& step : in_flight) {
    for (const SequenceSlice& slice : step.slices) {
      *load += load_of(slice);
    }
    ++load;
  }
  return loads;
}

}  // namespace

// Returns how many decodes the next step takes of those that are ready.
int Scheduler::decodes_dealt() const {
  const auto ready = std::count_if(running_.begin(), running_.end(),
                                   [this](const auto& entry) { return may_decode(*entry.second); });
  const std::vector<std::size_t> steps = deal_longest_first(
      std::vector<int>(static_cast<std::size_t>(ready), 1),
      loads_of(in_flight_, config_.steps_in_flight,
               [](const SequenceSlice& slice) { return slice.sample >= 0 ? 1 : 0; }));
  return static_cast<int>(std::count(steps.begin(), steps.end(), std::size_t{0}));
}

Scheduler::Newcomer Scheduler::as_newcomer(Sequence& sequence) const {
  const std::int64_t tokens = std::ssize(sequence.tokens);
  Newcomer newcomer{
      .sequence = &sequence, .tokens = static_cast<int>(tokens), .blocks = blocks_for(tokens)};
  if (config_.prefix_caching) {
    const auto reusable =
        std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.reusable()));
    const std::vector<BlockId> cached =
        match({.precision_tag = precision_tag_, .salt = sequence.asks.cache_salt}, reusable);
    newcomer.tokens -= static_cast<int>(std::ssize(cached)) * config_.block_tokens;
    newcomer.blocks -= std::count_if(cached.begin(), cached.end(),
                                     [this](BlockId block) { return pool_.references(block) > 0; });
  }
  return newcomer;
}

// Returns the waiting sequences that take part in dealing, in their order: as far as `tokens`, KV
// and places last, and at most one that is longer than `longest`, none if another one is there. A
// sequence stays in the queue if one of a higher priority may go to a later step: all but the first
// whole one and the long one may.
std::vector<Scheduler::Newcomer> Scheduler::newcomers(int longest, bool has_long,
                                                      std::int64_t tokens) {
  std::vector<Newcomer> found;
  std::int64_t blocks = pool_.free() - free_reserve();
  const std::int64_t places = free_places();
  bool has_whole = false;
  int last_priority = std::numeric_limits<int>::max();
  int passed_over = 0;
  for (auto next = waiting_.places().begin();
       next != waiting_.places().end() && next->first.priority <= last_priority && tokens > 0 &&
       std::ssize(found) < places;
       ++next) {
    Sequence& sequence = *next->second;
    if (must_wait(sequence, passed_over)) {
      continue;
    }
    const Newcomer newcomer = as_newcomer(sequence);
    if (passed_over == kPassedOver || newcomer.blocks > blocks) {
      break;
    }
    const bool is_long = newcomer.tokens > longest;
    if (is_long ? has_long : has_whole) {
      last_priority = next->first.priority;
    }
    if (is_long && has_long) {
      ++passed_over;
      continue;
    }
    (is_long ? has_long : has_whole) = true;
    tokens -= is_long ? 0 : newcomer.tokens;
    blocks -= newcomer.blocks;
    found.push_back(newcomer);
  }
  return found;
}

// Gives the step all running prompts, but of those longer than longest_whole() only a chunk of the
// first. Whole prompts that wait are dealt; none is admitted before the step that computes it.
void Scheduler::schedule_dealt(StepPlan& plan, bool admits) {
  if (!has_room(plan)) {
    return;
  }
  const int most = budget_.left();
  std::vector<std::int64_t> loads = loads_of(
      in_flight_, config_.steps_in_flight,
      [](const SequenceSlice& slice) { return slice.token_count > 1 ? slice.token_count : 0; });
  const int longest =
      longest_whole(static_cast<double>(running_.size()) / static_cast<double>(loads.size()), most,
                    config_.balance.least_tokens);
  std::vector<Sequence*> running;
  const Sequence* long_one = nullptr;
  for (const auto& [place, sequence] : running_) {
    const bool is_long = sequence->pending() > longest;
    if (!may_schedule(*sequence) || sequence->pending() <= 1 || (is_long && long_one != nullptr)) {
      continue;
    }
    long_one = is_long ? sequence : long_one;
    loads[0] += is_long ? 0 : sequence->pending();
    running.push_back(sequence);
  }
  std::vector<Newcomer> waiting;
  if (admits) {
    const auto steps = static_cast<std::int64_t>(loads.size() - in_flight_.size());
    waiting = newcomers(longest, long_one != nullptr, most * steps - loads[0]);
  }
  std::vector<int> whole;
  bool cuts = long_one != nullptr;
  for (const Newcomer& newcomer : waiting) {
    const bool is_long = newcomer.tokens > longest;
    cuts = cuts || is_long;
    if (!is_long) {
      whole.push_back(newcomer.tokens);
    }
  }
  const PromptDeal deal = deal_prompts(whole, cuts, most, std::move(loads));
  const auto part_of = [&](int tokens, bool is_long) {
    const int wanted = is_long ? std::min({tokens, deal.chunk, budget_.left()}) : tokens;
    return wanted <= budget_.left() ? wanted : 0;
  };
  const auto take = [&](Sequence& sequence, bool is_long) {
    const int count = part_of(sequence.pending(), is_long);
    if (count > 0) {
      schedule(plan, sequence, count);
    }
    return count > 0;
  };
  for (Sequence* sequence : running) {
    if (!take(*sequence, sequence == long_one)) {
      return;  // no later prompt takes the room that is left
    }
  }
  auto takes = deal.takes.begin();
  for (const Newcomer& newcomer : waiting) {
    const bool is_long = newcomer.tokens > longest;
    if ((!is_long && !*takes++) || waits_for_prefix(*newcomer.sequence)) {
      continue;  // waits for another step, or for the prefix of another newcomer
    }
    if (part_of(newcomer.tokens, is_long) == 0 || !enter(*newcomer.sequence) ||
        !take(*newcomer.sequence, is_long)) {
      return;
    }
  }
}

}  // namespace protean
