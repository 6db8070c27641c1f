#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace protean {

// How a model's replicas share requests, and when they become groups.
struct FleetOptions {
  std::string router = "first-token";
  std::string scale = "off";
  std::string drop = "off";
  int holds_at_once = 8;
  int device_timeout_s = 300;  // 0: devices are not watched
};

// Adds the flags about a model's replicas.
void add_fleet_options(CLI::App& app, FleetOptions& options);

}  // namespace protean
