#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"

namespace protean {

struct StepProfileOptions {
  std::string model;
  std::string variant_cache;
  std::vector<std::string> precisions = {"bf16", "w8", "w4"};
  int longest = 1024;  // tokens of the longest prompt and context
  ComputeOptions compute;
  int repeat = 5;
  bool cpu_time = false;
};

// The same result as text and as a JSON object.
struct StepReport {
  std::string text;
  boost::json::object json;
};

// Times steps of the real worker at each precision, fits the cost model to them and saves it.
// Compares its predictions with other steps, some of them with layers of mixed precisions.
Result<StepReport> profile_steps(const StepProfileOptions& options);

// Returns the cost model that an earlier call saved.
Result<StepReport> kept_steps(const StepProfileOptions& options);

}  // namespace protean
