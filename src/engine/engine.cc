#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {

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
  Live live{.stop_ids = std::move(arrival.request.stop_ids),
            .tokens_left = arrival.request.max_tokens,
            .times = {.arrived_ns = now_ns_}};
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
  const StepOutcome outcome = scheduler_.complete(done.result);
  step_tokens_ = outcome.tokens;
  for (const RequestId request : outcome.failed) {
    finish(request, {.reason = FinishReason::kFailed, .failure = done.result.failure->message});
  }
  for (const Sampled& sampled : outcome.sampled) {
    Live& live = live_.at(sampled.request);
    if (live.times.first_token_ns < 0) {
      live.times.first_token_ns = now_ns_;
    }
    if (std::find(live.stop_ids.begin(), live.stop_ids.end(), sampled.token) !=
        live.stop_ids.end()) {
      finish(sampled.request, {.reason = FinishReason::kStop, .stop_id = sampled.token});
      continue;
    }
    batch_.outputs.emplace_back(NewToken{sampled.request, sampled.token});
    if (--live.tokens_left == 0) {
      finish(sampled.request, {.reason = FinishReason::kLength});
    }
  }
}

void Engine::start_steps() {
  while (in_flight_ < max_in_flight_) {
    const std::optional<StepPlan> plan = scheduler_.next_step();
    if (!plan) {
      break;
    }
    for (const SequenceSlice& slice : plan->slices) {
      TimeNs& scheduled_ns = live_.at(slice.request).times.scheduled_ns;
      scheduled_ns = scheduled_ns < 0 ? now_ns_ : scheduled_ns;
    }
    ++in_flight_;
    executor_.start(*plan);
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
  live_.erase(found);
  batch_.outputs.emplace_back(std::move(finished));
}

}  // namespace protean
