#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/configuration.h"
#include "contract/intent.h"
#include "contract/model_spec.h"
#include "control/placement.h"
#include "control/ranking.h"

namespace protean {

// A model to deploy, for what load, and what its operator wants.
struct DeploymentWish {
  ModelSpec spec;
  PlannedLoad load;
  Intent intent;
  Pricing pricing;
  PlacementOptions placement;
};

// All configurations of a model, estimated and ranked, and the one to deploy.
struct Deployment {
  std::vector<EstimatedConfiguration> candidates;
  std::vector<Score> scores;        // one per candidate
  std::vector<std::size_t> ranked;  // candidates that keep the intent's bound, the best first
  std::size_t chosen = 0;           // candidate: the first in `ranked` that fits
  Placement placement;              // the devices of `chosen`
};

// Returns the time of steps under a configuration.
using StepsOf = std::function<ConfigurationSteps(const Configuration& configuration)>;

// Estimates each configuration.
std::vector<EstimatedConfiguration> estimate(const ModelSpec& spec, const PlannedLoad& load,
                                             std::span<const Configuration> configurations,
                                             const StepsOf& steps_of);

// Chooses a configuration and its devices (iServe section 6): ranks the candidates by the intent,
// takes the first one that fits the devices with most free memory, and places it by the policy. If
// none fits, fails and names the configuration that needs least memory more.
Result<Deployment> deploy(const DeploymentWish& wish,
                          std::vector<EstimatedConfiguration> candidates,
                          std::span<const DeviceState> devices);

// Chooses the next configuration in the order of ranks that fits, when the chosen one turned out
// not to; nothing if there is none.
std::optional<Deployment> next_deployment(const DeploymentWish& wish, Deployment found,
                                          std::span<const DeviceState> devices);

}  // namespace protean
