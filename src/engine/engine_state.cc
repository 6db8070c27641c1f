#include "engine/engine_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace protean {

EngineState join_homes(std::vector<EngineState> homes, const HomeBlocks& blocks) {
  EngineState all;
  std::vector<SchedulerState> schedulers;
  std::optional<SteeringState>& first = homes.front().form;
  for (EngineState& home : homes) {
    schedulers.push_back(std::move(home.scheduler));
    all.live.merge(std::move(home.live));
    if (first && !first->pin && home.form) {
      first->pin = home.form->pin;
    }
  }
  all.scheduler = join_homes(std::move(schedulers), blocks);
  all.times =
      std::max_element(homes.begin(), homes.end(), [](const EngineState& a, const EngineState& b) {
        return a.times->lengths().seen() < b.times->lengths().seen();
      })->times;
  all.form = std::move(first);
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
    home.form = all.form;
    if (home.form && result.homes.size() > 1) {
      home.form->counts.reset();
    }
    home.times = all.times;
    for (const auto* sequences : {&scheduler.running, &scheduler.waiting}) {
      for (const auto& sequence : *sequences) {
        home.live.insert(all.live.extract(sequence->asks.id));
      }
    }
    home.scheduler = std::move(scheduler);
  }
  return result;
}

EngineState Engine::counters() const {
  EngineState state{.scheduler = scheduler_.counters()};
  if (steering_) {
    state.form = steering_->state();
  }
  state.times = times_;
  return state;
}

EngineState Engine::release_all(TimeNs now_ns) {
  begin(now_ns);
  check(quiet(), "an engine gives up all at rest only");
  EngineState state = counters();
  state.scheduler = scheduler_.release_all();
  state.live = std::exchange(live_, {});
  timers_.clear();
  for (auto& [request, live] : state.live) {
    live.timer_ns = -1;
    if (steering_) {
      add(live.drawn_before, steering_->named(live.drawn_at));
    }
    live.drawn_at.clear();
  }
  return state;
}

void Engine::absorb(EngineState state, TimeNs now_ns) {
  begin(now_ns);
  check(live_.empty(), "only an empty engine takes the place of others");
  scheduler_.absorb(std::move(state.scheduler));
  live_ = std::move(state.live);
  if (state.times) {
    times_.learn(*state.times);
  }
  if (steering_ && state.form) {
    steering_->absorb(*std::move(state.form));
  }
  for (auto& [request, live] : live_) {
    set_timer(request, live);
  }
  settle();
}

}  // namespace protean
