#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "contract/intent.h"
#include "control/deployment.h"

namespace protean {

// The mean error of the estimated latency of a configuration, the largest of the models and
// machines that were measured on quiet processors (docs/measured.md).
inline constexpr double kEstimateError = 0.16;

// A model that serves on some devices, and how else it could be served.
struct MovableModel {
  DeploymentWish wish;  // for the load that the model has now
  // Without candidates the model stays as it is, and loads its devices.
  std::vector<EstimatedConfiguration> candidates;
  std::size_t now = 0;               // candidate that serves
  std::vector<int> devices;          // on which it computes
  double busy = 0;                   // share of the window in which it had requests
  double busy_error = 0;             // by which the share may be wrong
  double change_s = 0;               // time to load it once more
  std::vector<Precision> morphs_to;  // precisions that its engine may give its weights in place
  std::int64_t most_device_bytes = std::numeric_limits<std::int64_t>::max();  // that it may take
};

// A change of one model's configuration or devices, and what is predicted of it.
struct ModelMove {
  std::size_t model = 0;
  std::size_t candidate = 0;
  Placement placement;
  double saves_s = 0;     // busy seconds of all models over a window, each by how much its intent's
                          // objective falls
  double costs_s = 0;     // busy seconds that going there and back takes
  bool in_place = false;  // by a morph; otherwise the model is loaded next to itself
  double slowed = 1;      // by what other models take of its devices, now
  double slowed_to = 1;   // the same after the move
};

// Returns the move of one model that saves most in addition to its cost; nothing if no move saves
// more over a window, for which the load is expected to last, than going there and back costs. A
// model moves only to what its own intent prefers or finds equal.
//
// An engine computes one step at a time, so devices that others use for a share `b` of the time
// serve a model 1 + b times slower. Shares are taken at their lower bound for what is now and at
// their upper bound for what is after a move, so that chance moves nothing. Estimates of a
// configuration other than the present one are raised by kEstimateError. An intent's bound that is
// missed k times over counts as k times the objective.
//
// While a model is loaded, one device is busy for it and every busy second of any model counts as
// lost. `devices` says what is free next to all models: a model moves only if it fits there. One
// that goes to other weights in place needs only what they take more than its present ones, and the
// time to load as many bytes.
std::optional<ModelMove> best_move(std::span<const MovableModel> models,
                                   std::span<const DeviceState> devices, TimeNs window_ns);

}  // namespace protean
