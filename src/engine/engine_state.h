#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "contract/morph.h"
#include "engine/form_steering.h"
#include "engine/live_request.h"
#include "engine/queue_times.h"
#include "scheduler/scheduler_state.h"

namespace protean {

// All requests of an engine without steps in flight, as a value: engines merge and split by handing
// it over (Engine::release_all, absorb).
struct EngineState {
  SchedulerState scheduler;
  std::unordered_map<RequestId, LiveRequest> live;
  // Nothing: the form never changes. A group takes its first home's, and the pin of any.
  std::optional<SteeringState> form;
  // What was learned of steps and answers; a group takes what the home with most answers knows.
  std::optional<QueueTimes> times;
};

// Join and split engines as join_homes() and split_homes() of SchedulerState do, with the requests.
EngineState join_homes(std::vector<EngineState> homes, const HomeBlocks& blocks);

struct EngineStates {
  std::vector<EngineState> homes;
  std::vector<std::vector<BlockMove>> moves;  // see HomeStates
  int preempted = 0;
};
Result<EngineStates> split_homes(EngineState& all, const Homes& homes, bool preempts);

}  // namespace protean
