#include "engine/engine.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace protean {

std::vector<float> Engine::embedding_of(const Live& live) {
  const double rows = live.pooling == Pooling::kMean ? live.prompt_tokens : 1;
  std::vector<float> embedding;
  embedding.reserve(live.pooled.size());
  for (const double sum : live.pooled) {
    embedding.push_back(static_cast<float>(sum / rows));
  }
  return embedding;
}

Engine::Engine(const EngineConfig& config, Executor& executor, TokenSink& sink)
    : max_in_flight_(config.max_in_flight),
      scheduler_(config.scheduler),
      executor_(executor),
      sink_(sink) {
  check(max_in_flight_ > 0, "an engine needs a step in flight to get anywhere");
}

void Engine::handle(Event event) {
  now_ns_ = event.at_ns;
  step_tokens_ = 0;
  std::visit([this](auto& what) { on(what); }, event.what);
  start_steps();  // before the outputs go out: the executor should not wait for them
  batch_.at_ns = now_ns_;
  batch_.observation = scheduler_.observe();
  batch_.observation.step_tokens = step_tokens_;
  sink_.emit(std::exchange(batch_, {}));
}

void Engine::on(Arrival& arrival) {
  Live live{.stop_ids = arrival.request.stop_ids,
            .tokens_left = arrival.request.max_tokens,
            .prompt_tokens = static_cast<int>(arrival.request.prompt.size()),
            .pooling = arrival.request.pooling,
            .times = {.arrived_ns = now_ns_},
            .pooled = {}};
  const RequestId id = arrival.request.id;
  if (Status added = scheduler_.add(std::move(arrival.request)); !added.ok()) {
    batch_.outputs.emplace_back(Refused{id, added.error()});
    return;
  }
  live_.emplace(id, std::move(live));
  batch_.outputs.emplace_back(Accepted{id});
}

void Engine::on(Cancel& cancel) {
  finish(cancel.request, {.reason = FinishReason::kCancelled});
}

void Engine::on(StepDone& done) {
  --in_flight_;
  const std::optional<Error> failure = done.result.failure;
  StepOutcome outcome = scheduler_.complete(std::move(done.result));
  step_tokens_ = outcome.tokens;
  for (const RequestId request : outcome.failed) {
    finish(request, {.reason = FinishReason::kFailed, .failure = failure->message});
  }
  for (Scored& scored : outcome.scored) {
    batch_.outputs.emplace_back(
        PromptScored{scored.request, scored.first_position, std::move(scored.logprobs)});
  }
  for (Pooled& pooled : outcome.pooled) {
    pool(pooled);
  }
  for (Sampled& sampled : outcome.sampled) {
    take(sampled);
  }
  for (const RequestId request : outcome.computed) {
    finish(request, {.reason = FinishReason::kLength});
  }
}

void Engine::pool(Pooled& pooled) {
  Live& live = live_.at(pooled.request);
  if (pooled.first_position == 0 || live.pooled.empty()) {
    live.pooled = std::move(pooled.row);
    return;
  }
  check(pooled.row.size() == live.pooled.size(), "all rows of a model are as wide");
  std::transform(live.pooled.begin(), live.pooled.end(), pooled.row.begin(), live.pooled.begin(),
                 std::plus<>());
}

void Engine::take(Sampled& sampled) {
  Live& live = live_.at(sampled.request);
  if (live.times.first_token_ns < 0) {
    live.times.first_token_ns = now_ns_;
  }
  if (std::find(live.stop_ids.begin(), live.stop_ids.end(), sampled.token) != live.stop_ids.end()) {
    finish(sampled.request, {.reason = FinishReason::kStop, .stop_id = sampled.token});
    return;
  }
  batch_.outputs.emplace_back(
      NewToken{sampled.request, sampled.token, std::move(sampled.logprobs)});
  if (--live.tokens_left == 0) {
    finish(sampled.request, {.reason = FinishReason::kLength});
  }
}

void Engine::start_steps() {
  while (in_flight_ < max_in_flight_) {
    std::optional<StepPlan> plan = scheduler_.next_step();
    if (!plan) {
      break;
    }
    for (const SequenceSlice& slice : plan->slices) {
      TimeNs& scheduled_ns = live_.at(slice.request).times.scheduled_ns;
      scheduled_ns = scheduled_ns < 0 ? now_ns_ : scheduled_ns;
    }
    ++in_flight_;
    executor_.start(*std::move(plan));
  }
  check(in_flight_ > 0 || scheduler_.idle(), "requests wait but nothing can run");
}

void Engine::finish(RequestId request, Finished finished) {
  const auto found = live_.find(request);
  if (found == live_.end()) {
    return;
  }
  finished.request = request;
  finished.usage = scheduler_.remove(request).value();
  finished.times = found->second.times;
  finished.times.finished_ns = now_ns_;
  if (finished.reason == FinishReason::kLength) {
    finished.embedding = embedding_of(found->second);
  }
  live_.erase(found);
  batch_.outputs.emplace_back(std::move(finished));
}

}  // namespace protean
