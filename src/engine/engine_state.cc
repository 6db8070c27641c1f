#include "engine/engine_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace protean {

EngineState join_homes(std::vector<EngineState> homes) {
  EngineState all;
  std::vector<SchedulerState> schedulers;
  for (EngineState& home : homes) {
    schedulers.push_back(std::move(home.scheduler));
    all.live.merge(std::move(home.live));
    all.packing = std::move(home.packing);
    if (!all.pin) {
      all.pin = std::move(home.pin);
    }
  }
  all.scheduler = join_homes(std::move(schedulers));
  all.form_counts = std::move(homes.front().form_counts);
  all.times =
      std::max_element(homes.begin(), homes.end(), [](const EngineState& a, const EngineState& b) {
        return a.times->lengths().seen() < b.times->lengths().seen();
      })->times;
  all.policy = std::move(homes.front().policy);
  return all;
}

Result<EngineStates> split_homes(EngineState& all, const Homes& homes, bool preempts) {
  Result<HomeStates> split = split_homes(all.scheduler, homes, preempts);
  if (!split.ok()) {
    return split.error();
  }
  EngineStates result{.homes = {}, .moves = std::move(split->moves), .preempted = split->preempted};
  for (SchedulerState& scheduler : split->homes) {
    EngineState& home = result.homes.emplace_back();
    home.packing = all.packing;
    home.policy = all.policy;
    home.pin = all.pin;
    home.times = all.times;
    for (const auto* sequences : {&scheduler.running, &scheduler.waiting}) {
      for (const auto& sequence : *sequences) {
        home.live.insert(all.live.extract(sequence->asks.id));
      }
    }
    home.scheduler = std::move(scheduler);
  }
  result.homes.front().form_counts = std::move(all.form_counts);
  return result;
}

EngineState Engine::release_all(TimeNs now_ns) {
  begin(now_ns);
  check(quiet(), "an engine gives up all at rest only");
  EngineState state{.scheduler = scheduler_.release_all(), .live = std::exchange(live_, {})};
  if (steering_) {
    state.form_counts = steering_->counts();
    state.policy = steering_->chosen_policy();
    state.pin = steering_->pin();
  }
  state.times = times_;
  timers_.clear();
  state.packing = steering_ ? steering_->packing() : nullptr;
  for (auto& [request, live] : state.live) {
    live.timer_ns = -1;
    if (steering_) {
      add(live.drawn_before, steering_->named(live.drawn_at));
    }
    live.drawn_at.clear();
  }
  settle();
  return state;
}

void Engine::absorb(EngineState state, TimeNs now_ns) {
  begin(now_ns);
  check(live_.empty(), "only an empty engine takes the place of others");
  scheduler_.absorb(std::move(state.scheduler));
  live_ = std::move(state.live);
  if (state.times) {
    times_.learn_answers(*state.times);
    if (!times_.speed().has_learned()) {
      times_.learn_steps(*state.times);
    }
  }
  if (steering_) {
    if (state.form_counts) {
      steering_->go_on_from(*state.form_counts);
    }
    if (state.policy) {
      steering_->go_on_with(*state.policy);
    }
    steering_->take_pin(std::move(state.pin));
    steering_->packed(std::move(state.packing));
    steering_->tell_again();
  }
  for (auto& [request, live] : live_) {
    set_timer(request, live);
  }
  settle();
}

}  // namespace protean
