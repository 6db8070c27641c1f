#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/intent_options.h"
#include "apps/plan_report.h"
#include "base/result.h"
#include "host/machine.h"
#include "replica/harvest.h"
#include "replica/model_files.h"
#include "replica/model_options.h"
#include "replica/sizing.h"
#include "server/residence.h"

namespace protean {

// An intent, where estimates for it are kept, and the machine whose free memory it may use.
// Requests longer than the model's context are shortened.
struct IntentScene {
  IntentOptions intent;
  std::string variant_cache;
  const Machine& machine;
  std::vector<double> device_loads;  // of the server's devices; empty: they are idle
  std::vector<int> lost_devices;     // that have failed
  Harvest harvest;                   // of a fingerprint
};

// Plans how to serve a model for an intent: chooses the configuration that `protean plan` would
// choose of those that the checkpoint can be loaded as. Fails if the options set precisions or
// parallelism already, or describe devices in a file.
Result<std::shared_ptr<const PlanReport>> choose_for_intent(const IntentScene& scene,
                                                            const ModelFiles& files,
                                                            const ModelOptions& options);

// Times the steps that such plans of a model rest on. See profile_for_plans().
Status profile_for_intents(const IntentScene& scene, const ModelFiles& files,
                           const ModelOptions& options,
                           const std::function<void(const ProfileProgress&)>& told);

// Returns the plan with the next configuration that fits, for a model that cannot be sized in the
// chosen one; null if there is none.
std::shared_ptr<const PlanReport> next_choice(const PlanReport& report);

// Sets in `options` what a plan chose: the precisions of weights and KV, and the division among
// devices. If the model is to be `bound`, it computes on the CPUs of its devices alone. Logs it.
IntentPlan apply_plan(const PlanReport& report, bool bound, ModelOptions& options);

// Shortens requests that exceed a context, prompts and answers alike.
PlannedLoad within(PlannedLoad load, int max_context);

// Returns why no intent can choose how a model with these options is served, whose present devices
// are those of `sizing`; empty if one can.
std::string why_no_intent(const ModelOptions& options, const Sizing& sizing);

// Resets in `options` what an intent chooses, so that another one can choose again among as many
// devices: those of `sizing` if the options do not say. Fails for why_no_intent().
Status forget_choice(ModelOptions& options, const Sizing& sizing);

}  // namespace protean
