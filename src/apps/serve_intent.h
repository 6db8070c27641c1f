#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/result.h"
#include "cost/configuration_cost.h"
#include "host/machine.h"
#include "replica/model_files.h"
#include "replica/model_options.h"
#include "server/residence.h"

namespace protean {

// An intent, where estimates for it are kept, the requests that they are for, and the machine whose
// free memory it may use. Requests longer than the model's context are shortened.
struct IntentScene {
  std::string intent;
  std::string variant_cache;
  PlannedLoad load;
  const Machine& machine;
  std::function<void()> before_step;  // see FingerprintOptions
};

// Chooses how to serve a model for an intent: sets the precisions of weights and KV and the
// division among devices in `options` to the configuration that `protean plan` would choose of
// those that the checkpoint can be loaded as, logs it, and returns the plan. Fails if the options
// set one of them already, or describe devices in a file.
Result<IntentPlan> choose_for_intent(const IntentScene& scene, const ModelFiles& files,
                                     ModelOptions& options);

// Resets in `options` what an intent chooses, so that another one can choose again among as many
// devices: `devices` of them if the options do not say. Fails if the options ask for several
// replicas.
Status forget_choice(ModelOptions& options, std::size_t devices);

}  // namespace protean
