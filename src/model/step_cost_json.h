#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "base/result.h"
#include "cost/fit.h"
#include "cost/step_time.h"

namespace protean {

// How a cost model was learned: from steps of the whole model, or from its first layers.
enum class StepCostOrigin { kWholeModel, kFingerprint };

// The cost model of one model's steps on one machine.
struct MachineStepCost {
  std::string cpu;  // the processor on which the cost was measured
  int threads = 0;
  StepCostOrigin origin = StepCostOrigin::kWholeModel;
  bool cpu_time = false;  // measured in processor time, not wall time
  StepCost cost;
  PredictionError error;  // if kWholeModel: on held-out steps of 8 tokens or more
};

boost::json::object to_json(const MachineStepCost& measured);

// Reads what to_json() writes, or an object that has it as "steps", as `protean profile --json`
// prints it. Fails with kCorrupt if a field is missing or cannot be the time of a step; `name` says
// whose object it is.
Result<MachineStepCost> parse_step_cost(const boost::json::object& object, const std::string& name);

}  // namespace protean
