#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "control/placement.h"
#include "cost/configuration_cost.h"

namespace protean {

// An intent, and what decides among configurations that keep it.
struct IntentOptions {
  std::string intent;
  std::string formula = "memory-time";
  double price = 1;  // of a device-hour
  PlannedLoad load;  // that estimates are for
  std::string placement = "hybrid";
  double theta = PlacementOptions().theta;
};

void add_intent_options(CLI::App& app, IntentOptions& options);

}  // namespace protean
