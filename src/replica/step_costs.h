#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cost/fingerprint.h"
#include "model/checkpoint.h"
#include "model/profile_database.h"
#include "replica/fingerprint.h"

namespace protean {

// The model whose steps cost something, and where its profiles are kept.
struct StepCostSource {
  std::filesystem::path model;
  std::filesystem::path directory;  // empty: the default folder of packed weights
  std::string version;              // the program's version
};

// Names the processor and the instructions that kernels use on it.
std::string processor_name();

// Returns the key of a model's cost on this machine.
Result<StepCostKey> step_cost_key(const StepCostSource& source, const ModelSpec& spec,
                                  const FingerprintOptions& options);

// Returns the folder of the profile database; empty if profiles cannot be kept.
std::filesystem::path profile_directory(const StepCostSource& source);

// Returns the cost model that is kept for this model and machine. Fails with kNotFound if there is
// none.
Result<MachineStepCost> kept_step_cost(const StepCostSource& source, const ModelSpec& spec,
                                       const FingerprintOptions& options);

// Measures a fingerprint and keeps its cost model. If it cannot be kept, says why in `remark`. A
// fingerprint that waits for turns keeps the time of each step, and the next one goes on where it
// was stopped. One with steps that were only timed while others had requests is not kept.
Result<Fingerprint> learn_step_cost(const StepCostSource& source, const Checkpoint& checkpoint,
                                    const FingerprintOptions& options, std::string* remark);

// Forgets the times that a fingerprint that did not end has kept, so that the next one begins anew.
Status forget_step_times(const StepCostSource& source, const ModelSpec& spec,
                         const FingerprintOptions& options);

// Returns the kept cost model, or that of a new fingerprint if there is none, or none that knows
// the sums that `options` ask for. Logs where it comes from. Fails with the reason if it cannot be
// known.
Result<StepCost> known_step_cost(const StepCostSource& source, const Checkpoint& checkpoint,
                                 const FingerprintOptions& options);

}  // namespace protean
