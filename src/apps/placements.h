#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "apps/plan_report.h"
#include "base/units.h"
#include "control/model_load.h"
#include "control/model_moves.h"
#include "server/residence.h"

namespace protean {

// On which devices a server's models compute, and how busy each is. May be used from any thread.
class Placements {
 public:
  // Models move by the load of the last `window_ns`; with 0 they never do.
  explicit Placements(TimeNs window_ns) : window_ns_(window_ns) {}

  // The model at this place of all models is loaded, which took `load_s`. `report` is of the plan
  // that placed it; null: it computes on all devices and never moves.
  void add(std::size_t place, std::shared_ptr<const PlanReport> report, double load_s);
  void remove(std::size_t place);

  // Returns the share of the window in which each device was busy for models other than the one at
  // this place; empty if no model was planned.
  std::vector<double> device_loads(std::optional<std::size_t> without = {}) const;

  // See ModelLoader::choose_move().
  std::optional<ModelLoader::ModelToMove> choose_move(std::span<const ModelSample> samples,
                                                      TimeNs now_ns);

 private:
  struct Placed {
    std::shared_ptr<const PlanReport> report;
    double load_s = 0;
    ModelLoad load;
  };

  const PlanReport* common_report() const;
  MovableModel movable(const Placed& placed, const ModelSample& sample) const;
  std::vector<DeviceState> devices_now() const;

  const TimeNs window_ns_;
  mutable std::mutex mutex_;
  std::map<std::size_t, Placed> placed_;
};

// Returns the plan of a model that moves: the plan before, with the estimates for the wish's load,
// and the configuration and the devices of its move.
std::shared_ptr<const PlanReport> report_of_move(const PlanReport& before, const IntentWish& wish);

}  // namespace protean
