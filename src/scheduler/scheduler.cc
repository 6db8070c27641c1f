#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"

namespace protean {

namespace {

constexpr double kRecentPrompts = 32;  // over which the prefix cache's hits are averaged

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      pool_(config.kv_blocks),
      cache_(config.kv_blocks, config.block_tokens),
      largest_kv_{std::max(config.kv_blocks, config.largest_kv_blocks),
                  std::max(config.kv_blocks, config.largest_kv_blocks)},
      budget_(config.balance) {
  check(config.block_tokens > 0 && config.max_num_seqs > 0 && config.max_num_batched_tokens > 0 &&
            config.max_model_len > 1 && config.steps_in_flight > 0,
        "scheduler limits must be positive");
  pool_.reserve(largest_kv_.now);
  cache_.reserve(largest_kv_.now);
}

CacheScope Scheduler::scope_of(const Sequence& sequence) const {
  return {.precision_tag = sequence.precision_tag, .salt = sequence.asks.cache_salt};
}

Status Scheduler::check_length(std::int64_t prompt, std::int64_t max_tokens) const {
  const std::int64_t length = prompt + max_tokens;
  if (length > config_.max_model_len) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the request needs {} tokens ({} in the prompt, {} for the output), but the "
                      "model's context holds {}: shorten the prompt or ask for fewer tokens",
                      length, prompt, max_tokens, config_.max_model_len);
  }
  const std::int64_t blocks = blocks_to_end(prompt, max_tokens);
  if (blocks > largest_kv_.now && blocks <= largest_kv_.released) {
    return make_error(
        ErrorCode::kUnavailable,
        "the request needs {} KV blocks ({} tokens), but the KV cache has {} for now: "
        "an operator chose its form, or replicas become a group or part. Shorten the "
        "request, or retry later",
        blocks, length, largest_kv_.now);
  }
  if (blocks > largest_kv_.now) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the request needs {} KV blocks ({} tokens), but the whole KV cache has {}: "
                      "shorten it, or serve with more memory for KV",
                      blocks, length, largest_kv_.now);
  }
  return {};
}

TimeNs Scheduler::due_of(const Request& request, TimeNs due_ns, TimeNs now_ns) const {
  const auto call = of_call_.find(request.call);
  const int behind = call == of_call_.end() ? 0 : call->second;
  return now_ns + (due_ns - now_ns) * (1 + behind);
}

Status Scheduler::add(Request request, TimeNs due_ns, TimeNs now_ns) {
  check(!request.prompt.empty() && request.max_tokens >= 0,
        "a request needs a prompt and a limit of its output");
  check(request.pooling == Pooling::kNone || request.max_tokens == 0,
        "an embedding has no output tokens");
  const std::int64_t prompt = std::ssize(request.prompt);
  if (Status fits = check_length(prompt, request.max_tokens); !fits.ok()) {
    return fits;
  }
  now_ns_ = now_ns;
  auto sequence = std::make_unique<Sequence>();
  const RequestId id = request.id;
  const TimeNs place_due_ns = due_of(request, due_ns, now_ns);
  sequence->tokens = std::move(request.prompt);
  sequence->asks = std::move(request);
  if (sequence->asks.call.value != 0) {
    sequence->behind = of_call_[sequence->asks.call]++;
  }
  sequence->place = {sequence->asks.priority, place_due_ns, ++latest_.arrival};
  sequence->prompt_tokens = static_cast<int>(prompt);
  sequence->usage.prompt_tokens = static_cast<int>(prompt);
  enqueue(*sequence);
  const bool fresh = sequences_.emplace(id, std::move(sequence)).second;
  check(fresh, "request ids are unique");
  ++totals_.accepted_total;
  return {};
}

std::optional<RequestUsage> Scheduler::remove(RequestId request) {
  const auto found = sequences_.find(request);
  if (found == sequences_.end()) {
    return std::nullopt;
  }
  Sequence& sequence = *found->second;
  const RequestUsage usage = sequence.usage;
  if (sequence.failed) {
    forget_blocks(sequence);
  }
  if (running_.contains(sequence.place)) {
    leave(sequence);
  } else {
    waiting_.remove(sequence);
  }
  leave_call(sequence);
  sequences_.erase(found);
  return usage;
}

void Scheduler::leave_call(const Sequence& sequence) {
  if (const auto call = of_call_.find(sequence.asks.call);
      call != of_call_.end() && --call->second == 0) {
    of_call_.erase(call);
  }
}

std::int64_t Scheduler::uncached(const CacheScope& scope, std::span<const TokenId> tokens,
                                 int reusable) const {
  const std::int64_t all = std::ssize(tokens);
  if (!config_.prefix_caching) {
    return all;
  }
  const auto found = match(scope, tokens.first(static_cast<std::size_t>(reusable)));
  return all - std::ssize(found) * config_.block_tokens;
}

std::int64_t Scheduler::tokens_to_compute(const Request& request) const {
  return uncached({.precision_tag = precision_tag_, .salt = request.cache_salt}, request.prompt,
                  reusable_tokens(request, static_cast<int>(request.prompt.size()), 1));
}

std::int64_t Scheduler::tokens_to_compute(const Sequence& sequence) const {
  return uncached({.precision_tag = precision_tag_, .salt = sequence.asks.cache_salt},
                  sequence.tokens, sequence.reusable());
}

bool Scheduler::has_room(const StepPlan& plan) const {
  return budget_.has_room() && std::ssize(plan.slices) < config_.max_num_seqs;
}

std::optional<StepPlan> Scheduler::next_step(TimeNs now_ns) {
  now_ns_ = now_ns;
  too_large_by_ = 0;
  StepPlan plan;
  plan.tokens.reserve(static_cast<std::size_t>(config_.max_num_seqs));
  plan.slices.reserve(running_.size());
  plan.samples.reserve(running_.size());
  displace_for_waiting();
  const std::int64_t preemptions_before = totals_.preemptions_total;
  budget_.begin_step(config_.max_num_batched_tokens);
  schedule_decodes(plan, deals_work() ? decodes_dealt() : divide_ready_work());
  budget_.begin_prompts();
  // A newcomer would be preempted again while KV is short.
  const bool admits = totals_.preemptions_total == preemptions_before || running_.empty();
  if (deals_work()) {
    schedule_dealt(plan, admits);
  } else {
    schedule_prefills(plan);
    if (admits) {
      admit_waiting(plan);
    }
  }
  if (plan.slices.empty()) {
    return std::nullopt;
  }
  plan.id = StepId{++latest_.step};
  in_flight_.push_back({plan.id, precision_tag_, plan.slices, plan.samples.size(),
                        plan.scores.size(), budget_.cost_taken()});
  return plan;
}

bool Scheduler::may_schedule(const Sequence& sequence) const {
  return !is_paused(sequence) &&
         (!sequence.scheduled() || (config_.steps_in_flight > 1 && sequence.may_overlap()));
}

bool Scheduler::may_decode(const Sequence& sequence) const {
  return !sequence.scheduled() && sequence.pending() == 1 && !is_paused(sequence);
}

// Takes the blocks of a waiting sequence from `free` ones. Returns false if they do not suffice.
bool Scheduler::takes_of(std::int64_t& free, Sequence& sequence) const {
  std::int64_t needed = blocks_for(std::ssize(sequence.tokens));
  if (needed > free && !is_refused(sequence)) {
    needed = as_newcomer(sequence).blocks;
    if (needed > pool_.free() - free_reserve()) {
      sequence.refused = {.free = pool_.free(), .changes = changes()};
    }
  }
  free -= needed;
  return free >= 0;
}

// Gives the step its share of all work, in flight or ready: as much as each other step that may be
// in flight. So steps that are uneven become even again. A prompt that waits and finds KV counts as
// the tokens that prompts may take. Returns how many decodes the step may take.
int Scheduler::divide_ready_work() {
  if (config_.steps_in_flight <= 1) {
    return config_.max_num_seqs;
  }
  const int steps = std::max(1, config_.steps_in_flight - static_cast<int>(in_flight_.size()));
  double work = 0;
  std::int64_t all_tokens = 0;
  std::int64_t decodes = 0;
  bool has_prompts = false;
  for (const InFlight& step : in_flight_) {
    work += step.cost;
    for (const SequenceSlice& slice : step.slices) {
      all_tokens += slice.token_count;
    }
  }
  std::int64_t prompt_tokens = std::int64_t{steps} * budget_.of_prompts(budget_.left());
  const auto add = [&](const Sequence& sequence) {
    const bool decode = sequence.pending() == 1;
    const int tokens = decode ? 1
                              : static_cast<int>(std::min<std::int64_t>(
                                    std::max(0, sequence.pending()), prompt_tokens));
    prompt_tokens -= decode ? 0 : tokens;
    has_prompts = has_prompts || (!decode && tokens > 0);
    work += budget_.cost(sequence.planned, tokens);
    all_tokens += tokens;
  };
  for (const auto& [place, sequence] : running_) {
    decodes += sequence->pending() <= 1 ? 1 : 0;
    if (may_schedule(*sequence)) {
      add(*sequence);
    }
  }
  std::int64_t blocks = pool_.free() - free_reserve();
  std::int64_t places = free_places();
  for (const auto& [place, sequence] : waiting_.places()) {
    if (!fits_now(*sequence) || sequence->held_until > 0) {
      continue;  // those behind it need not wait for it
    }
    if (prompt_tokens <= 0 || places-- <= 0 || !takes_of(blocks, *sequence)) {
      break;
    }
    add(*sequence);
  }
  const std::int64_t shares = budget_.divide(work, all_tokens, config_.steps_in_flight);
  // Next to prompts, or if there are more shares than stages, each share has a part of the decodes
  // too: those that are ready again would else take a larger part of short steps than of long ones,
  // or all of each step while no other one is in flight.
  return has_prompts || shares > config_.steps_in_flight
             ? static_cast<int>(ceil_div(decodes, shares))
             : config_.max_num_seqs;
}

// Schedules at most so many decodes. If not all may be in the step, they take turns.
void Scheduler::schedule_decodes(StepPlan& plan, int most) {
  if (most < std::ssize(running_)) {
    schedule_decodes(plan, running_.upper_bound(latest_.decode), most);
  }
  schedule_decodes(plan, running_.begin(), most);
}

void Scheduler::schedule_decodes(StepPlan& plan, std::map<QueuePlace, Sequence*>::iterator from,
                                 int most) {
  // In order, so that a preempted sequence comes after the one that gets its blocks.
  for (auto place = from;
       place != running_.end() && has_room(plan) && std::ssize(plan.slices) < most;) {
    Sequence& sequence = *place->second;
    if (may_decode(sequence)) {
      bool fits = grow(sequence);
      while (!fits && make_room(sequence)) {
        fits = grow(sequence);
      }
      if (fits) {
        schedule(plan, sequence);
        latest_.decode = sequence.place;
      }
      place = running_.upper_bound(sequence.place);  // preemption may have erased this place
    } else {
      ++place;
    }
  }
}

void Scheduler::schedule_prefills(StepPlan& plan) {
  for (auto& [place, sequence] : running_) {
    if (!has_room(plan)) {
      return;
    }
    if (may_schedule(*sequence) && sequence->pending() > 1) {
      schedule(plan, *sequence);
    }
  }
}

// Gives the sequence blocks for all its tokens, cached ones first, or gives it none.
bool Scheduler::admit(Sequence& sequence) {
  const std::int64_t reserve = free_reserve();
  if (!running_.empty() && (pool_.free() <= reserve || is_refused(sequence))) {
    return false;
  }
  sequence.precision_tag = precision_tag_;
  sequence.cacheable = config_.prefix_caching;
  if (config_.prefix_caching) {
    const auto reusable =
        std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.reusable()));
    sequence.blocks = match(scope_of(sequence), reusable);
  }
  for (const BlockId block : sequence.blocks) {
    pool_.acquire(block);
  }
  const std::int64_t wanted = blocks_for(std::ssize(sequence.tokens)) - std::ssize(sequence.blocks);
  if (pool_.free() < wanted + reserve) {
    release_blocks(sequence);
    sequence.refused.free = pool_.free();
    sequence.refused.changes = changes();
    return false;
  }
  sequence.refused.free = -1;
  sequence.cached = sequence.blocks.size();
  sequence.computed = static_cast<int>(sequence.cached) * config_.block_tokens;
  sequence.planned = sequence.computed;
  for (std::int64_t i = 0; i < wanted; ++i) {
    const BlockId block = pool_.allocate().value();
    cache_.forget(block);
    sequence.blocks.push_back(block);
  }
  if (sequence.usage.preemptions == 0) {
    sequence.usage.cached_tokens = sequence.computed;
    totals_.prefix_query_tokens_total += config_.prefix_caching ? sequence.prompt_tokens : 0;
    totals_.prefix_hit_tokens_total += sequence.computed;
    totals_.prompt_tokens_total += sequence.prompt_tokens;
    const double share = static_cast<double>(sequence.computed) / sequence.prompt_tokens;
    hit_share_ += (share - hit_share_) / kRecentPrompts;
  }
  return true;
}

// Makes sure that the sequence has a block for its next token.
bool Scheduler::grow(Sequence& sequence) {
  if (!lacks_block(sequence)) {
    return true;
  }
  const std::optional<BlockId> block = pool_.allocate();
  if (!block) {
    return false;
  }
  cache_.forget(*block);
  sequence.blocks.push_back(*block);
  --decodes_short_;
  return true;
}

void Scheduler::schedule(StepPlan& plan, Sequence& sequence) {
  schedule(plan, sequence,
           budget_.tokens_of(sequence.planned, sequence.pending(), config_.block_tokens));
}

void Scheduler::schedule(StepPlan& plan, Sequence& sequence, int count) {
  append_slice(plan, sequence, count, static_cast<int>(blocks_for(sequence.planned + count)));
  budget_.take(sequence.planned, count);
  sequence.planned += count;
  ++sequence.in_steps;
}

StepOutcome Scheduler::complete(StepResult result) {
  check(!in_flight_.empty() && in_flight_.front().id == result.id, "steps complete in order");
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  check(result.failure ||
            (result.sampled.size() >= step.samples && result.scored.size() >= step.scores),
        "a step that did not fail has drawn and scored all its tokens");
  StepOutcome outcome;
  outcome.sampled.reserve(step.samples);
  std::size_t pooled = 0;
  for (const SequenceSlice& slice : step.slices) {
    const std::size_t pool = slice.pooling == Pooling::kNone ? pooled : pooled++;
    const auto found = sequences_.find(slice.request);
    if (found == sequences_.end()) {
      continue;  // removed while the step ran
    }
    Sequence& sequence = *found->second;
    --sequence.in_steps;
    const auto failed = std::find_if(
        result.failed.begin(), result.failed.end(),
        [&](const RequestFailure& failure) { return failure.request == slice.request; });
    if (result.failure || failed != result.failed.end()) {
      outcome.failed.push_back(
          {slice.request, result.failure ? result.failure->message : std::move(failed->why)});
      sequence.failed = true;
      continue;
    }
    if (slice.pooling != Pooling::kNone) {
      check(pool < result.pooled.size(), "a step that did not fail has pooled all it should");
      outcome.pooled.push_back(
          {slice.request, slice.first_position, std::move(result.pooled[pool])});
    }
    sequence.cacheable = sequence.cacheable && step.precision_tag == sequence.precision_tag;
    advance(sequence, slice, result, outcome);
  }
  for (Sampled& sampled : outcome.sampled) {
    sampled.precision_tag = step.precision_tag;
  }
  ++totals_.steps_total;
  return outcome;
}

void Scheduler::advance(Sequence& sequence, const SequenceSlice& slice, StepResult& result,
                        StepOutcome& outcome) {
  outcome.tokens += slice.token_count;
  sequence.computed = slice.first_position + slice.token_count;
  publish_blocks(sequence);
  if (slice.score_count > 0) {
    const auto first = result.scored.begin() + slice.score_begin;
    outcome.scored.push_back(
        {slice.request,
         sequence.scored,
         {std::make_move_iterator(first), std::make_move_iterator(first + slice.score_count)}});
    sequence.scored += slice.score_count;
  }
  if (slice.sample >= 0) {
    const auto index = static_cast<std::size_t>(slice.sample);
    sequence.tokens.push_back(result.sampled[index]);
    decodes_short_ += lacks_block(sequence) ? 1 : 0;
    ++sequence.usage.output_tokens;
    ++totals_.output_tokens_total;
    Sampled& sampled = outcome.sampled.emplace_back();
    sampled.request = slice.request;
    sampled.token = result.sampled[index];
    if (sequence.asks.logprobs.answer) {
      check(index < result.logprobs.size(), "logprobs come with the samples that want them");
      sampled.logprobs = std::move(result.logprobs[index]);
    }
  } else if (sequence.ends_with_prompt() && sequence.computed == std::ssize(sequence.tokens)) {
    outcome.computed.push_back(slice.request);
  }
}

// Takes the blocks that only this sequence uses out of the prefix cache. After a failure its keys
// and values may be no numbers, also those of earlier steps, which drew nothing and did not fail.
void Scheduler::forget_blocks(const Sequence& sequence) {
  for (std::size_t i = 0; i < std::min(sequence.cached, sequence.blocks.size()); ++i) {
    const BlockId block = sequence.blocks[i];
    if (pool_.references(block) - std::count(exchange_.lent.begin(), exchange_.lent.end(), block) ==
        1) {
      cache_.forget(block);
    }
  }
}

// Sequences that computed the same prefix in the same steps share the first one's blocks
// afterwards.
void Scheduler::publish_blocks(Sequence& sequence) {
  const auto block_tokens = static_cast<std::size_t>(config_.block_tokens);
  const std::size_t whole = static_cast<std::size_t>(sequence.computed) / block_tokens;
  for (; sequence.cacheable && sequence.cached < whole; ++sequence.cached) {
    BlockId& block = sequence.blocks[sequence.cached];
    const BlockId parent = sequence.cached == 0 ? -1 : sequence.blocks[sequence.cached - 1];
    const auto content =
        std::span(sequence.tokens).subspan(sequence.cached * block_tokens, block_tokens);
    const BlockId holder = cache_.insert(scope_of(sequence), parent, block, content);
    if (holder < 0) {
      sequence.cacheable = false;
      return;
    }
    if (holder != block) {
      pool_.acquire(holder);
      release(block);
      block = holder;
    }
  }
}

Observation Scheduler::observe() const {
  Observation now = totals_;
  now.running = static_cast<int>(running_.size());
  now.waiting = static_cast<int>(waiting_.size());
  now.kv_blocks = pool_.total();
  now.kv_blocks_used = pool_.used();
  now.kv_blocks_awaited = waiting_.blocks();
  return now;
}

}  // namespace protean
