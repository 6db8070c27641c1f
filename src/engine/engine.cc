#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "control/predict.h"

namespace protean {

namespace {

constexpr TimeNs kExpectWaitEveryNs = kNsPerS / 10;

Error too_late(TimeNs wait_ns, TimeNs left_ns) {
  return make_error(ErrorCode::kExhausted,
                    "the first token would come in about {} ms, but is asked for within {} ms: "
                    "retry later, or allow more time",
                    wait_ns / kNsPerMs, left_ns / kNsPerMs);
}

// Returns the work of a prompt of which the prefix cache lacks so many tokens.
PromptWork missing(std::int64_t tokens, std::int64_t of_tokens) {
  return prompt_work(static_cast<double>(tokens), static_cast<double>(of_tokens - tokens));
}

}  // namespace

std::vector<float> Engine::embedding_of(const LiveRequest& live) {
  const double rows = live.pooling == Pooling::kMean ? live.prompt_tokens : 1;
  std::vector<float> embedding;
  embedding.reserve(live.pooled.size());
  for (const double sum : live.pooled) {
    embedding.push_back(static_cast<float>(sum / rows));
  }
  return embedding;
}

Engine::Engine(const EngineConfig& config, Executor& executor, TokenSink& sink)
    : replica_(config.replica),
      block_tokens_(config.scheduler.block_tokens),
      max_in_flight_(config.max_in_flight),
      scheduler_(config.scheduler),
      executor_(executor),
      sink_(sink),
      times_({config.step_cost, config.scheduler.max_num_batched_tokens, config.path_cost},
             config.step_precision) {
  check(max_in_flight_ > 0, "an engine needs a step in flight to get anywhere");
  if (config.morph) {
    steering_ = std::make_unique<FormSteering>(*config.morph, config.scheduler, executor,
                                               scheduler_, times_);
  }
}

void Engine::handle(Event event) {
  begin(event.at_ns);
  std::visit([this](auto& what) { on(what); }, event.what);
  settle();
}

void Engine::begin(TimeNs now_ns) {
  now_ns_ = now_ns;
  step_tokens_ = 0;
  if (steering_) {
    steering_->at(now_ns_);
  }
}

Observation Engine::observe() const {
  Observation now = scheduler_.observe();
  now.devices = executor_.use();
  return now;
}

// Does all that follows from an event, and sends its outputs.
void Engine::settle() {
  expire();
  if (steering_) {
    steering_->advance();
  }
  start_steps();  // before the outputs are sent, so that the executor does not wait for them
  batch_.at_ns = now_ns_;
  batch_.replica = replica_;
  batch_.observation = observe();
  batch_.observation.expected_wait_ns = expected_wait_ns();
  if (steering_) {
    steering_->observe(batch_.observation);
    if (started_.empty()) {
      steering_->advance_quietly();
    }
    batch_.form = steering_->status_if_changed();
    batch_.memory = steering_->memory_if_due(batch_.observation);
  }
  limit_prompts();
  batch_.observation.step_tokens = step_tokens_;
  sink_.emit(std::exchange(batch_, {}));
}

// Keeps steps short if something waits for them: the weights of a morph change between steps, and
// the KV of a request that moves here is copied between steps.
void Engine::limit_prompts() {
  const bool short_steps = scheduler_.keeps_places() || !form_at_rest();
  scheduler_.limit_prompts(short_steps
                               ? times_.prompt_tokens_within(kShortStepS, scheduler_.backlog())
                               : std::numeric_limits<int>::max());
}

Prospect Engine::prospect(const Request& request, TimeNs now_ns) const {
  Prospect expected;
  const auto fits = scheduler_.check_length(std::ssize(request.prompt), request.max_tokens);
  if (!fits.ok()) {
    expected.refusal = fits.error();
    return expected;
  }
  const PromptWork prompt =
      missing(scheduler_.tokens_to_compute(request), std::ssize(request.prompt));
  const TimeNs due_ns =
      scheduler_.due_of(request, due_ns_of(request.deadlines, prompt, now_ns), now_ns);
  expected = expect(request.priority, due_ns, prompt);
  const TimeNs latest_ns = request.deadlines.first_token_ns;
  if (latest_ns >= 0 && now_ns + expected.first_token_ns > latest_ns) {
    expected.refusal = too_late(expected.first_token_ns, latest_ns - now_ns);
  }
  return expected;
}

Prospect Engine::prospect(const Sequence& sequence) const {
  const Request& asks = sequence.asks;
  const PromptWork prompt =
      missing(scheduler_.tokens_to_compute(sequence), std::ssize(sequence.tokens));
  Prospect expected = expect(asks.priority, sequence.place.due_ns, prompt);
  const auto fits = scheduler_.check_length(sequence.prompt_tokens, asks.max_tokens);
  if (!fits.ok()) {
    expected.refusal = fits.error();
  }
  return expected;
}

Prospect Engine::expect(int priority, TimeNs due_ns, const PromptWork& prompt) const {
  const std::int64_t tokens = std::llround(prompt.tokens);
  Prospect expected{.tokens = tokens,
                    .before = scheduler_.backlog_before(priority, due_ns, tokens)};
  expected.first_token_ns = times_.first_token_ns(expected.before, prompt);
  return expected;
}

// Predicts the queue time of a request that arrives now, not at each event: it looks at every
// sequence.
TimeNs Engine::expected_wait_ns() {
  if (expected_at_ns_ < 0 || now_ns_ - expected_at_ns_ >= kExpectWaitEveryNs) {
    const Backlog backlog = scheduler_.backlog();
    const bool queue = backlog.prompts > 1 || backlog.without_place > 0;
    expected_wait_ns_ = queue ? times_.first_token_ns(backlog, {}) : 0;
    expected_at_ns_ = now_ns_;
  }
  return expected_wait_ns_;
}

// Returns the time until which a request with this prompt should begin.
TimeNs Engine::due_ns_of(const Deadlines& deadlines, const PromptWork& prompt,
                         TimeNs now_ns) const {
  return deadlines.first_token_ns >= 0 ? std::max(now_ns, latest_start_ns(deadlines, prompt))
                                       : now_ns + kDefaultFirstTokenNs;
}

void Engine::on(Arrival& arrival) {
  const RequestId id = arrival.request.id;
  if (Status accepted = accept(std::move(arrival.request), now_ns_); !accepted.ok()) {
    batch_.outputs.emplace_back(Refused{id, accepted.error()});
    return;
  }
  batch_.outputs.emplace_back(Accepted{id});
}

Status Engine::accept(Request request, TimeNs arrived_ns) {
  LiveRequest live{.stop_ids = request.stop_ids,
                   .tokens_left = request.max_tokens,
                   .prompt_tokens = static_cast<int>(request.prompt.size()),
                   .pooling = request.pooling,
                   .deadlines = request.deadlines,
                   .times = {.arrived_ns = arrived_ns}};
  const RequestId id = request.id;
  const bool hurries = live.deadlines.first_token_ns >= 0;
  PromptWork prompt;
  if (hurries) {
    Prospect expected = prospect(request, now_ns_);
    if (expected.refusal) {
      return *std::move(expected.refusal);
    }
    prompt = missing(expected.tokens, live.prompt_tokens);
  }
  const TimeNs due_ns = due_ns_of(live.deadlines, prompt, arrived_ns);
  if (Status added = scheduler_.add(std::move(request), due_ns, now_ns_); !added.ok()) {
    return added;
  }
  if (steering_) {
    steering_->arrived(live.prompt_tokens);
  }
  set_timer(id, live_.emplace(id, std::move(live)).first->second);
  return {};
}

void Engine::begin_request(Request request, TimeNs arrived_ns, TimeNs now_ns) {
  begin(now_ns);
  const Status accepted = accept(std::move(request), arrived_ns);
  check(accepted.ok(), "a request that was accepted is not refused later");
  settle();
}

void Engine::go_on(TimeNs now_ns) {
  begin(now_ns);
  held_ = false;
  settle();
}

void Engine::hold_form(bool holds) {
  if (steering_) {
    steering_->hold(holds);
  }
}

void Engine::call_off_morph(const std::string& why, TimeNs now_ns) {
  begin(now_ns);
  if (steering_) {
    steering_->call_off(why);
  }
  settle();
}

void Engine::resume_form(TimeNs now_ns) {
  begin(now_ns);
  if (steering_) {
    steering_->resume();
  }
  settle();
}

void Engine::allow_lowering(TimeNs now_ns) {
  if (steering_ && steering_->wants_lowering()) {
    begin(now_ns);
    steering_->allow_lowering();
    settle();
  }
}

Result<Form> Engine::form_with(const FormWish& wish) const {
  check(steering_ != nullptr, "a form that never changes has no other precisions");
  return steering_->form_of(wish);
}

Result<Morph> Engine::lead_form(const FormWish& wish, TimeNs now_ns) {
  begin(now_ns);
  check(steering_ != nullptr, "a form that never changes is led nowhere");
  Result<Morph> answer = steering_->lead_to(wish);
  settle();
  return answer;
}

std::optional<Form> Engine::form() const {
  return steering_ ? std::optional(steering_->committed()) : std::nullopt;
}

void Engine::resume(RequestId request, TimeNs now_ns) {
  begin(now_ns);
  scheduler_.resume(request);
  settle();
}

void Engine::give_back(std::span<const BlockId> lent, TimeNs now_ns) {
  begin(now_ns);
  scheduler_.give_back(lent);
  settle();
}

void Engine::drop(std::span<const BlockId> received, TimeNs now_ns) {
  begin(now_ns);
  scheduler_.give_up_place();
  scheduler_.drop(received);
  settle();
}

void Engine::on(DevicesFailed&) {
  check(false, "what fails is taken out of service by the fleet");
}

void Engine::on(BlocksCopied&) {
  check(false, "copies between replicas are the fleet's");
}

void Engine::on(WantMigration&) {
  check(false, "requests migrate between replicas of a fleet");
}

void Engine::on(WantGroups&) {
  check(false, "groups are the fleet's");
}

void Engine::on(Cancel& cancel) {
  finish(cancel.request, {.reason = FinishReason::kCancelled});
}

void Engine::on(MorphReady& ready) {
  check(steering_ != nullptr, "only what was asked for gets ready");
  steering_->on(ready);
}

void Engine::on(MorphDone& done) {
  check(steering_ != nullptr, "only what was asked for is done");
  steering_->on(done);
}

void Engine::on(WantForm& want) {
  batch_.outputs.emplace_back(
      steering_ ? steering_->on(want)
                : WishAnswered{want.wish_id,
                               make_error(ErrorCode::kInvalidArgument,
                                          "this replica's form stays as it was loaded: start the "
                                          "server with --morph to have it change")});
}

void Engine::on(WantQuota& want) {
  if (steering_) {
    steering_->on(want);
  }
}

void Engine::on(StepDone& done) {
  check(!started_.empty(), "only a step in flight can end");
  const StartedStep step = started_.front();
  const StepTimes took{now_ns_ - step.at_ns, now_ns_ - last_done_ns_};
  started_.pop_front();
  last_done_ns_ = now_ns_;
  StepOutcome outcome = scheduler_.complete(std::move(done.result));
  step_tokens_ = outcome.tokens;
  times_.step_done(step.work, step.precision, took);
  if (steering_) {
    steering_->step_done(std::min(took.since_start_ns, took.since_last_ns));
  }
  for (RequestFailure& failed : outcome.failed) {
    finish(failed.request, {.reason = FinishReason::kFailed, .failure = std::move(failed.why)});
  }
  for (Scored& scored : outcome.scored) {
    batch_.outputs.emplace_back(
        PromptScored{scored.request, scored.first_position, std::move(scored.logprobs)});
  }
  for (Pooled& pooled : outcome.pooled) {
    pool(pooled);
  }
  batch_.outputs.reserve(batch_.outputs.size() + outcome.sampled.size());
  for (Sampled& sampled : outcome.sampled) {
    take(sampled);
  }
  for (const RequestId request : outcome.computed) {
    finish(request, {.reason = FinishReason::kLength});
  }
}

void Engine::pool(Pooled& pooled) {
  LiveRequest& live = live_.at(pooled.request);
  if (pooled.first_position == 0 || live.pooled.empty()) {
    live.pooled = std::move(pooled.row);
    return;
  }
  check(pooled.row.size() == live.pooled.size(), "all rows of a model are as wide");
  std::transform(live.pooled.begin(), live.pooled.end(), pooled.row.begin(), live.pooled.begin(),
                 std::plus<>());
}

std::shared_ptr<const std::string> Engine::count(const Sampled& sampled, LiveRequest& live) {
  auto precision = steering_->drawn(sampled.precision_tag, live.drawn_at);
  if (live.last_token_ns < 0) {
    steering_->first_token(std::max(TimeNs{0}, now_ns_ - live.times.arrived_ns));
  } else {
    steering_->next_token(std::max(TimeNs{0}, now_ns_ - live.last_token_ns));
  }
  live.last_token_ns = now_ns_;
  return precision;
}

void Engine::take(Sampled& sampled) {
  LiveRequest& live = live_.at(sampled.request);
  std::shared_ptr<const std::string> precision = steering_ ? count(sampled, live) : nullptr;
  if (live.times.first_token_ns < 0) {
    live.times.first_token_ns = now_ns_;
  }
  if (std::find(live.stop_ids.begin(), live.stop_ids.end(), sampled.token) != live.stop_ids.end()) {
    finish(sampled.request, {.reason = FinishReason::kStop, .stop_id = sampled.token});
    return;
  }
  batch_.outputs.emplace_back(
      NewToken{sampled.request, sampled.token, std::move(sampled.logprobs), std::move(precision)});
  if (--live.tokens_left == 0) {
    finish(sampled.request, {.reason = FinishReason::kLength});
  }
}

std::optional<TimeNs> Engine::next_deadline_ns() const {
  std::optional<TimeNs> next_ns =
      timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first);
  const auto steering_ns = steering_ ? steering_->next_deadline_ns(idle()) : std::nullopt;
  if (steering_ns) {
    next_ns = std::min(next_ns.value_or(*steering_ns), *steering_ns);
  }
  return next_ns;
}

// Returns the latest time at which a prompt, alone in its steps, can begin and meet its deadline.
TimeNs Engine::latest_start_ns(const Deadlines& deadlines, const PromptWork& prompt) const {
  return deadlines.first_token_ns - times_.prefill_ns(prompt);
}

// Sets the request's timer to the next time at which it may have to end. A request that has begun
// may miss the deadline of its first token.
void Engine::set_timer(RequestId request, LiveRequest& live) {
  TimeNs next_ns = live.deadlines.finish_ns;
  if (live.deadlines.first_token_ns >= 0 && live.times.scheduled_ns < 0) {
    const PromptWork prompt = missing(scheduler_.tokens_to_compute(request), live.prompt_tokens);
    const TimeNs latest_ns = latest_start_ns(live.deadlines, prompt) + 1;
    next_ns = next_ns < 0 ? latest_ns : std::min(next_ns, latest_ns);
  }
  timers_.erase({live.timer_ns, request});
  live.timer_ns = next_ns;
  if (next_ns >= 0) {
    timers_.emplace(next_ns, request);
  }
}

void Engine::expire() {
  while (!timers_.empty() && timers_.begin()->first <= now_ns_) {
    const RequestId request = timers_.begin()->second;
    LiveRequest& live = live_.at(request);
    set_timer(request, live);  // steps may be faster by now, or the prompt cached
    if (live.timer_ns >= 0 && live.timer_ns <= now_ns_) {
      finish(request, {.reason = FinishReason::kTimeout});
    }
  }
  for (const RequestId request : steering_ ? steering_->given_up() : std::vector<RequestId>{}) {
    finish(request, {.reason = FinishReason::kFailed,
                     .failure = "the request needs a larger KV cache than there was in time: "
                                "shorten it or send it again later",
                     .may_retry = true});
  }
}

void Engine::start_steps() {
  if (held_) {
    return;
  }
  while (std::ssize(started_) < max_in_flight_) {
    std::optional<StepPlan> plan = scheduler_.next_step(now_ns_);
    if (!plan) {
      break;
    }
    for (const SequenceSlice& slice : plan->slices) {
      TimeNs& scheduled_ns = live_.at(slice.request).times.scheduled_ns;
      scheduled_ns = scheduled_ns < 0 ? now_ns_ : scheduled_ns;
    }
    started_.push_back(
        {now_ns_, steering_ ? steering_->work_of_step(*plan) : work_of(*plan), times_.precision()});
    executor_.start(*std::move(plan));
    if (steering_) {
      steering_->step_started();
    }
  }
  check(!started_.empty() || scheduler_.idle() || scheduler_.waits_for_larger_kv() ||
            scheduler_.exchanges_kv() || scheduler_.admits_none(),
        "requests wait but nothing can run");
}

void Engine::finish(RequestId request, Finished finished) {
  const auto found = live_.find(request);
  if (found == live_.end()) {
    return;
  }
  finished.request = request;
  finished.usage = scheduler_.remove(request).value();
  if (steering_) {
    finished.usage.output_at = std::move(found->second.drawn_before);
    add(finished.usage.output_at, steering_->named(found->second.drawn_at));
  }
  finished.times = found->second.times;
  finished.times.finished_ns = now_ns_;
  timers_.erase({found->second.timer_ns, request});
  if (finished.reason == FinishReason::kStop || finished.reason == FinishReason::kLength) {
    times_.answer_done(finished.usage.prompt_tokens, finished.usage.output_tokens);
  }
  if (finished.reason == FinishReason::kLength) {
    finished.embedding = embedding_of(found->second);
  }
  live_.erase(found);
  batch_.outputs.emplace_back(std::move(finished));
}

}  // namespace protean
