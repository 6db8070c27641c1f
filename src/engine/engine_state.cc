#include "engine/engine_state.h"

#include <utility>

namespace protean {

EngineState join_homes(std::vector<EngineState> homes) {
  EngineState all;
  std::vector<SchedulerState> schedulers;
  for (EngineState& home : homes) {
    schedulers.push_back(std::move(home.scheduler));
    all.live.merge(std::move(home.live));
    all.packing = std::move(home.packing);
  }
  all.scheduler = join_homes(std::move(schedulers));
  all.form_counts = std::move(homes.front().form_counts);
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

}  // namespace protean
