#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/cpu_share.h"
#include "measure/calibration_text.h"
#include "measure/profile_table.h"
#include "model/swap_profile.h"

namespace protean {

struct LayerProfileOptions {
  std::string model;
  std::string calibrate;
  std::string text;
  std::string precision = "w4";
  std::vector<double> weights = {0.25, 0.25, 0.5};
  std::string metric = "cosine";
  WindowOptions windows = {.samples = 8, .length = 256};
  std::string cache;
  std::vector<std::string> variants;
  bool halves = false;
  bool table = false;
  ComputeOptions compute;
};

struct LayerTables {
  std::vector<OrderTable> orders;
  IndependenceTable independence;
};

struct LayerReport {
  SwapProfile profile;
  std::string kept;  // where it is kept, or why not
  double seconds = 0.0;
  std::vector<std::string> target_names;  // in the order of the layers
  std::optional<LayerTables> tables;
};

// Ranks the layers of a model by what they lose at fewer bits, and saves the order.
Result<LayerReport> profile_layers(const LayerProfileOptions& options);

std::string to_text(const LayerReport& report);
boost::json::object to_json(const LayerReport& report);

}  // namespace protean
