#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/intent_options.h"
#include "apps/plan_report.h"
#include "base/result.h"
#include "contract/model_spec.h"
#include "host/machine.h"
#include "model/checkpoint.h"
#include "replica/harvest.h"
#include "server/residence.h"

namespace protean {

// What a user asks of a plan.
struct PlanOptions {
  std::string devices = "1";
  std::string cpus = {};           // that a number of devices divides; empty: all
  std::vector<double> loads = {};  // of each device; empty: as --devices says
  std::vector<int> lost = {};      // devices that have failed
  std::optional<std::int64_t> most_device_bytes = {};  // that the model may take of each device
  std::string space = "protean";
  IntentOptions intent = {.intent = "min-cost"};
  std::string weights = "auto";
  std::string variant_cache;
  bool as_it_is = false;  // only what this checkpoint can be loaded as: loads_as()
  Harvest harvest = {};   // of a fingerprint, while models serve
};

// The model of a plan: its sizes, and if it is not a known model's sizes alone, its files.
struct PlannedModel {
  std::string name;
  std::string identity;  // in the configuration map
  ModelSpec spec;
  std::filesystem::path path;
  std::shared_ptr<Checkpoint> checkpoint;
};

// Estimates every configuration, chooses one and places it, and keeps the estimates in the
// configuration map; a map that cannot be kept is a warning. Runs a fingerprint of a model whose
// steps were never timed on a device of this machine, which takes seconds.
Result<PlanReport> make_plan(const PlanOptions& options, const PlannedModel& model,
                             const Machine& machine);

// The reason of what ends because its harvest is over.
Error plan_stopped();

// Makes the fingerprints that plans of a model rest on, whether or not they are kept, and keeps
// them. Tells how far it is after each timed run.
Status profile_for_plans(const PlanOptions& options, const PlannedModel& model,
                         const Machine& machine,
                         const std::function<void(const ProfileProgress&)>& told);

}  // namespace protean
