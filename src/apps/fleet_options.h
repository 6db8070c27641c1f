#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"
#include "replica/device_group.h"
#include "replica/model_options.h"
#include "replica/replica.h"

namespace protean {

// How a model's replicas share requests, and when they become groups.
struct FleetOptions {
  std::string router = "first-token";
  std::string migrate = "load";
  std::string scale = "off";
  std::string drop = "off";
  int holds_at_once = 64;
  int device_timeout_s = 300;  // 0: devices are not watched
  int scaler_after_s = 10;
};

void add_fleet_options(CLI::App& app, FleetOptions& options);

// Refuses policies that could never form a group.
Status check_groups(const FleetOptions& options, const GroupOptions& group);

// Returns true if a policy may form groups, so that replicas need a form that may change.
bool forms_groups(const FleetOptions& options);

// Says in `model` what policies that group replicas for long requests need of them.
void prepare_for_groups(const FleetOptions& options, ModelOptions& model);

// Writes the policies into the options of the replicas. The flags allow no other names.
void set_policies(const FleetOptions& options, ReplicaOptions& replica);

}  // namespace protean
