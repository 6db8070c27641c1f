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

// The cost model of one model's steps on one machine, as it is kept beside the packed layers.
struct MachineStepCost {
  std::string cpu;  // that it was measured on
  int threads = 0;
  bool cpu_time = false;  // processor time was measured, not the wall's
  StepCost cost;
  PredictionError error;  // on steps of 8 tokens or more that it was not fitted on
};

// `directory` and `model` are VariantStore's.
Status save_step_cost(const std::filesystem::path& directory, const ModelIdentity& model,
                      const MachineStepCost& cost);

// Measured on this CPU with so many threads: kNotFound where there is none, kCorrupt where it is
// another model's or machine's, or cannot be.
struct StepCostKey {
  ModelIdentity model;
  std::string cpu;
  int threads = 0;
};
Result<MachineStepCost> load_step_cost(const std::filesystem::path& directory,
                                       const StepCostKey& key);

// As it is kept, without whose it is.
boost::json::object to_json(const MachineStepCost& kept);

}  // namespace protean
