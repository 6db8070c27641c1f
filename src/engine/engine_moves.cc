// How requests leave one engine for another.

#include <algorithm>
#include <memory>
#include <utility>

#include "control/predict.h"
#include "engine/engine.h"

namespace protean {

MovedRequest Engine::release(RequestId request, TimeNs now_ns) {
  begin(now_ns);
  MovedRequest moved{.sequence = scheduler_.release(request)};
  moved.live = take_live(request);
  settle();
  return moved;
}

// Takes what is known of a request that leaves for another engine.
LiveRequest Engine::take_live(RequestId request) {
  const auto found = live_.find(request);
  LiveRequest live = std::move(found->second);
  live_.erase(found);
  timers_.erase({live.timer_ns, request});
  live.timer_ns = -1;
  if (steering_) {
    add(live.drawn_before, steering_->named(live.drawn_at));
  }
  live.drawn_at.clear();
  return live;
}

std::vector<MovedRequest> Engine::abandon(TimeNs now_ns) {
  begin(now_ns);
  std::vector<MovedRequest> all;
  for (std::unique_ptr<Sequence>& sequence : scheduler_.abandon()) {
    const RequestId request = sequence->asks.id;
    all.push_back({std::move(sequence), take_live(request)});
  }
  started_.clear();
  settle();
  return all;
}

bool Engine::keep_place(const Scheduler::Decoding& sequence) {
  const bool kept = has_room_for(sequence) && scheduler_.keep_place();
  limit_prompts();
  return kept;
}

bool Engine::computes_for_long() const {
  return executor_.awaits_turn() ||
         std::any_of(started_.begin(), started_.end(), [this](const StartedStep& step) {
           return times_.speed().step_s(step.precision, step.work) > kShortStepS;
         });
}

void Engine::give_up_kv(const std::vector<RequestId>& requests, TimeNs now_ns) {
  begin(now_ns);
  scheduler_.give_up_kv(requests);
  settle();
}

void Engine::adopt(MovedRequest moved, std::vector<BlockId> blocks, TimeNs now_ns) {
  begin(now_ns);
  const RequestId request = moved.sequence->asks.id;
  scheduler_.adopt(std::move(moved.sequence), std::move(blocks), now_ns);
  set_timer(request, live_.emplace(request, std::move(moved.live)).first->second);
  settle();
}

}  // namespace protean
