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

// The cost model of one model's steps on one machine, stored in the model's variant folder.
struct MachineStepCost {
  std::string cpu;  // on which it was measured
  int threads = 0;
  bool cpu_time = false;  // measured in processor time, not wall time
  StepCost cost;
  PredictionError error;  // on held-out steps of 8 tokens or more
};

// Saves a cost model. `directory` and `model` are VariantStore's.
Status save_step_cost(const std::filesystem::path& directory, const ModelIdentity& model,
                      const MachineStepCost& cost);

// The model and machine of a cost model. load_step_cost() fails with kNotFound if there is no file,
// and with kCorrupt if the file is damaged or belongs to another model or machine.
struct StepCostKey {
  ModelIdentity model;
  std::string cpu;
  int threads = 0;
};
Result<MachineStepCost> load_step_cost(const std::filesystem::path& directory,
                                       const StepCostKey& key);

// Returns the stored JSON without the fields that name the model.
boost::json::object to_json(const MachineStepCost& kept);

}  // namespace protean
