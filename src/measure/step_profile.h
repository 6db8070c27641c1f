#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"
#include "replica/step_costs.h"

namespace protean {

struct StepProfileOptions {
  StepCostSource source;
  std::vector<std::string> precisions = {"bf16", "w8", "w4"};
  int longest = 1024;  // tokens of the longest prompt and context
  ComputeOptions compute;
  int repeat = 5;
  bool cpu_time = false;
  bool fingerprint = false;  // make one too, and compare it with the whole model
};

// What a profile of steps found, as text and as a JSON object that say the same.
struct StepReport {
  std::string text;
  boost::json::object json;
};

// Times steps of the real worker at each precision, fits the cost model to them and saves it.
// Compares its predictions with other steps, some of them with layers of mixed precisions.
Result<StepReport> profile_steps(const StepProfileOptions& options);

// Makes a fingerprint at these precisions and saves its cost model.
Result<StepReport> profile_fingerprint(const StepProfileOptions& options);

// Returns the cost model that a server would use.
Result<StepReport> kept_steps(const StepProfileOptions& options);

}  // namespace protean
