#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {

struct Scheduler::Sequence {
  RequestId id;
  Order order = 0;
  SamplingParams sampling;
  std::string cache_salt;
  std::vector<TokenId> tokens;  // prompt, then output
  std::vector<BlockId> blocks;  // covers at least `computed` tokens
  int prompt_tokens = 0;
  int computed = 0;        // leading tokens whose KV is there
  std::size_t cached = 0;  // leading blocks that the prefix cache knows
  bool cacheable = true;   // all KV so far was computed at precision_tag
  bool scheduled = false;  // in a plan not yet completed
  std::uint32_t precision_tag = 0;
  // Free blocks and cache insertions when admission last failed: while neither is more, it would
  // fail again, and finding that out costs a walk over the whole prompt.
  std::int64_t refused_at_free = -1;
  std::uint64_t refused_at_insertions = 0;
  RequestUsage usage;

  int pending() const { return static_cast<int>(tokens.size()) - computed; }
};

struct Scheduler::InFlight {
  StepId id;
  std::uint32_t precision_tag = 0;
  std::vector<SequenceSlice> slices;
  std::ptrdiff_t samples = 0;
};

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config), pool_(config.kv_blocks), cache_(config.kv_blocks, config.block_tokens) {
  check(config.block_tokens > 0 && config.max_num_seqs > 0 && config.max_num_batched_tokens > 0 &&
            config.max_model_len > 1,
        "scheduler limits must be positive");
}

Scheduler::~Scheduler() = default;

std::int64_t Scheduler::blocks_for(std::int64_t tokens) const {
  return ceil_div(tokens, std::int64_t{config_.block_tokens});
}

CacheScope Scheduler::scope_of(const Sequence& sequence) const {
  return {.precision_tag = sequence.precision_tag, .salt = sequence.cache_salt};
}

Status Scheduler::add(Request request) {
  check(!request.prompt.empty() && request.max_tokens > 0,
        "a request needs a prompt and an output");
  const std::int64_t prompt = std::ssize(request.prompt);
  const std::int64_t length = prompt + request.max_tokens;
  if (length > config_.max_model_len) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the request needs {} tokens ({} in the prompt, {} for the output), but the "
                      "model's context holds {}: shorten the prompt or ask for fewer tokens",
                      length, prompt, request.max_tokens, config_.max_model_len);
  }
  // The last token is drawn but never fed back, so it needs no KV.
  const std::int64_t blocks = blocks_for(length - 1);
  if (blocks > pool_.total()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the request needs {} KV blocks ({} tokens), but the whole KV cache has {}: "
                      "shorten it, or serve with more memory for KV",
                      blocks, length, pool_.total());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->order = ++last_order_;
  sequence->sampling = request.sampling;
  sequence->cache_salt = std::move(request.cache_salt);
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = static_cast<int>(prompt);
  sequence->usage.prompt_tokens = static_cast<int>(prompt);
  waiting_.emplace(sequence->order, sequence.get());
  const bool fresh = sequences_.emplace(request.id, std::move(sequence)).second;
  check(fresh, "request ids are unique");
  return {};
}

std::optional<RequestUsage> Scheduler::remove(RequestId request) {
  const auto found = sequences_.find(request);
  if (found == sequences_.end()) {
    return std::nullopt;
  }
  Sequence& sequence = *found->second;
  const RequestUsage usage = sequence.usage;
  release_blocks(sequence);
  waiting_.erase(sequence.order);
  running_.erase(sequence.order);
  sequences_.erase(found);
  return usage;
}

int Scheduler::budget_left(const StepPlan& plan) const {
  return config_.max_num_batched_tokens - static_cast<int>(plan.tokens.size());
}

bool Scheduler::has_room(const StepPlan& plan) const {
  return budget_left(plan) > 0 && std::ssize(plan.slices) < config_.max_num_seqs;
}

std::optional<StepPlan> Scheduler::next_step() {
  StepPlan plan;
  plan.tokens.reserve(static_cast<std::size_t>(config_.max_num_seqs));
  const std::int64_t preemptions_before = totals_.preemptions_total;
  schedule_decodes(plan);
  schedule_prefills(plan);
  if (totals_.preemptions_total == preemptions_before) {
    admit_waiting(plan);  // not while KV is short: it would only be preempted again
  }
  if (plan.slices.empty()) {
    return std::nullopt;
  }
  plan.id = StepId{++last_step_};
  in_flight_.push_back({plan.id, precision_tag_, plan.slices, std::ssize(plan.samples)});
  return plan;
}

void Scheduler::schedule_decodes(StepPlan& plan) {
  // Oldest first, so that a preempted sequence is always younger than the one it makes room for.
  for (auto place = running_.begin(); place != running_.end() && has_room(plan);) {
    Sequence& sequence = *place->second;
    if (!sequence.scheduled && sequence.pending() == 1) {
      bool fits = grow(sequence);
      while (!fits && preempt_youngest() && running_.contains(sequence.order)) {
        fits = grow(sequence);
      }
      if (fits) {
        schedule(plan, sequence);
      }
      place = running_.upper_bound(sequence.order);  // preemption may have erased our place
    } else {
      ++place;
    }
  }
}

void Scheduler::schedule_prefills(StepPlan& plan) {
  for (auto& [order, sequence] : running_) {
    if (!has_room(plan)) {
      return;
    }
    if (!sequence->scheduled && sequence->pending() > 1) {
      schedule(plan, *sequence);
    }
  }
}

void Scheduler::admit_waiting(StepPlan& plan) {
  while (!waiting_.empty() && has_room(plan) && std::ssize(running_) < config_.max_num_seqs) {
    Sequence& sequence = *waiting_.begin()->second;
    if (!admit(sequence)) {
      return;
    }
    waiting_.erase(sequence.order);
    running_.emplace(sequence.order, &sequence);
    schedule(plan, sequence);
  }
}

// Takes the blocks of all its tokens, cached ones first, or takes nothing.
bool Scheduler::admit(Sequence& sequence) {
  // A little is kept back for the sequences that run already, else the newcomer preempts at once.
  const std::int64_t reserve = running_.empty() ? 0 : pool_.total() / 100;
  const bool as_refused = pool_.free() <= sequence.refused_at_free &&
                          cache_.insertions() == sequence.refused_at_insertions;
  if (!running_.empty() && (pool_.free() <= reserve || as_refused)) {
    return false;
  }
  sequence.precision_tag = precision_tag_;
  sequence.cacheable = config_.prefix_caching;
  if (config_.prefix_caching) {
    // The last token is always computed: its logits are wanted.
    const auto reusable = std::span(sequence.tokens).first(sequence.tokens.size() - 1);
    sequence.blocks = cache_.match(scope_of(sequence), reusable);
  }
  for (const BlockId block : sequence.blocks) {
    pool_.acquire(block);
  }
  const std::int64_t wanted = blocks_for(std::ssize(sequence.tokens)) - std::ssize(sequence.blocks);
  if (pool_.free() < wanted + reserve) {
    release_blocks(sequence);
    sequence.refused_at_free = pool_.free();
    sequence.refused_at_insertions = cache_.insertions();
    return false;
  }
  sequence.refused_at_free = -1;
  sequence.cached = sequence.blocks.size();
  sequence.computed = static_cast<int>(sequence.cached) * config_.block_tokens;
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
  }
  return true;
}

// Room for one more token.
bool Scheduler::grow(Sequence& sequence) {
  if (std::ssize(sequence.blocks) >= blocks_for(std::ssize(sequence.tokens))) {
    return true;
  }
  const std::optional<BlockId> block = pool_.allocate();
  if (!block) {
    return false;
  }
  cache_.forget(*block);
  sequence.blocks.push_back(*block);
  return true;
}

// False when every running sequence is in a plan already.
bool Scheduler::preempt_youngest() {
  for (auto place = running_.rbegin(); place != running_.rend(); ++place) {
    if (!place->second->scheduled) {
      preempt(*place->second);
      return true;
    }
  }
  return false;
}

void Scheduler::preempt(Sequence& sequence) {
  release_blocks(sequence);
  sequence.computed = 0;
  ++sequence.usage.preemptions;
  ++totals_.preemptions_total;
  running_.erase(sequence.order);
  waiting_.emplace(sequence.order, &sequence);
}

void Scheduler::schedule(StepPlan& plan, Sequence& sequence) {
  const int count = std::min(sequence.pending(), budget_left(plan));
  const int end = sequence.computed + count;
  SequenceSlice slice{.request = sequence.id,
                      .first_position = sequence.computed,
                      .token_begin = static_cast<int>(plan.tokens.size()),
                      .token_count = count,
                      .block_begin = static_cast<int>(plan.blocks.size()),
                      .block_count = static_cast<int>(blocks_for(end))};
  if (end == static_cast<int>(sequence.tokens.size())) {
    slice.sample = static_cast<int>(plan.samples.size());
    plan.samples.push_back({sequence.sampling, end});
  }
  plan.tokens.insert(plan.tokens.end(), sequence.tokens.begin() + sequence.computed,
                     sequence.tokens.begin() + end);
  plan.blocks.insert(plan.blocks.end(), sequence.blocks.begin(),
                     sequence.blocks.begin() + slice.block_count);
  plan.slices.push_back(slice);
  sequence.scheduled = true;
}

StepOutcome Scheduler::complete(const StepResult& result) {
  check(!in_flight_.empty() && in_flight_.front().id == result.id, "steps complete in order");
  check(result.failure || std::ssize(result.sampled) >= in_flight_.front().samples,
        "a step that did not fail has drawn all its tokens");
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  StepOutcome outcome;
  for (const SequenceSlice& slice : step.slices) {
    const auto found = sequences_.find(slice.request);
    if (found == sequences_.end()) {
      continue;  // cancelled while it was computed
    }
    Sequence& sequence = *found->second;
    sequence.scheduled = false;
    if (result.failure) {
      outcome.failed.push_back(sequence.id);
      continue;
    }
    outcome.tokens += slice.token_count;
    sequence.computed = slice.first_position + slice.token_count;
    sequence.cacheable = sequence.cacheable && step.precision_tag == sequence.precision_tag;
    publish_blocks(sequence);
    if (slice.sample >= 0) {
      const TokenId token = result.sampled[static_cast<std::size_t>(slice.sample)];
      sequence.tokens.push_back(token);
      ++sequence.usage.output_tokens;
      ++totals_.output_tokens_total;
      outcome.sampled.push_back({sequence.id, token});
    }
  }
  ++totals_.steps_total;
  return outcome;
}

// Two sequences that computed the same prefix side by side end up sharing the blocks of the first.
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
      pool_.release(block);
      block = holder;
    }
  }
}

// Last block first: the pool reuses the first released first, and a chain is worth more the more of
// its beginning is left.
void Scheduler::release_blocks(Sequence& sequence) {
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
    pool_.release(*block);
  }
  sequence.blocks.clear();
  sequence.cached = 0;
}

Observation Scheduler::observe() const {
  Observation now = totals_;
  now.running = static_cast<int>(running_.size());
  now.waiting = static_cast<int>(waiting_.size());
  now.kv_blocks = pool_.total();
  now.kv_blocks_used = pool_.used();
  return now;
}

}  // namespace protean
