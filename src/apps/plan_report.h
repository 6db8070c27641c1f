#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan_devices.h"
#include "control/deployment.h"
#include "cost/configuration_cost.h"

namespace protean {

// A finished plan and what it was made from.
struct PlanReport {
  std::string model;
  std::string space;
  DeploymentWish wish;
  PlannedDevices devices;
  std::vector<DeviceState> states;  // the devices' states, within `most_device_bytes`
  std::optional<std::int64_t> most_device_bytes = {};  // that the model may take of each device
  std::vector<std::string> rests_on;                   // one for each candidate
  // Perplexity over that of the unchanged model, where measured; one for each candidate.
  std::vector<std::optional<double>> perplexity_ratios = {};
  Deployment deployment;
  // Estimates the same configurations for another load; empty with built-in profiles.
  std::function<std::vector<EstimatedConfiguration>(const PlannedLoad& load)> estimate_for = {};
};

// Returns the share of the model's weights that a fingerprint of so many layers has.
double fingerprint_share(const ModelSpec& spec, int layers);

// Returns an estimate as `protean plan --json` shows it, but for what a plan makes of it.
// `perplexity_ratio` is nothing where it was not measured.
boost::json::object estimate_json(const EstimatedConfiguration& of, int layers,
                                  std::optional<double> perplexity_ratio,
                                  const std::string& rests_on);

std::string plan_text(const PlanReport& report, int rows);
boost::json::object plan_json(const PlanReport& report);

}  // namespace protean
