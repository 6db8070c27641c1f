#pragma once

#include <boost/json/fwd.hpp>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cost/fit.h"
#include "cost/step_time.h"
#include "model/variant_file.h"

namespace protean {

// The cost model of one model's steps on one machine, which is saved next to the packed layers.
struct MachineStepCost {
  std::string cpu;  // it was measured on
  int threads = 0;
  bool cpu_time = false;  // of processor time, not wall time
  StepCost cost;
  PredictionError error;  // on held-out steps of 8 tokens or more
};

// Saves the cost model in `directory`, VariantStore::model_directory().
Status save_step_cost(const std::filesystem::path& directory, const ModelIdentity& model,
                      const MachineStepCost& cost);

// Loads the cost model that was measured on this CPU with this many threads. Fails with kNotFound
// if there is none, and with kCorrupt if it is another model's or machine's or makes no sense.
struct StepCostKey {
  ModelIdentity model;
  std::string cpu;
  int threads = 0;
};
Result<MachineStepCost> load_step_cost(const std::filesystem::path& directory,
                                       const StepCostKey& key);

// Returns the cost model as JSON, without the model's identity.
boost::json::object to_json(const MachineStepCost& kept);

}  // namespace protean
