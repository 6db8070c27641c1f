#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "apps/plan_report.h"
#include "base/units.h"
#include "control/model_load.h"
#include "control/model_moves.h"
#include "server/residence.h"

namespace protean {

// The devices and memory for which a plan is made.
struct DevicesNow {
  std::vector<int> lost;      // that have failed
  std::vector<double> loads;  // see Placements::device_loads()
  std::int64_t unclaimed_bytes = 0;
};

// Calls `plan` with what `now` returns. If more devices have failed when it ends, plans again,
// unless `ends` returns true. Returns the last plan.
template <class Plan>
auto plan_for_devices(const std::function<DevicesNow()>& now, const std::function<bool()>& ends,
                      const Plan& plan) {
  while (true) {
    const DevicesNow devices = now();
    auto planned = plan(devices);
    if (devices.lost == now().lost || ends()) {
      return planned;
    }
  }
}

// On which devices a server's models compute, and how busy each is. May be used from any thread.
class Placements {
 public:
  // Models move by the load of the last `window_ns`; with 0 they never do, and loads are those of
  // the last two minutes.
  explicit Placements(TimeNs window_ns)
      : may_move_(window_ns > 0), window_ns_(may_move_ ? window_ns : ModelLoad::kWindowNs) {}

  // What it takes a model to change.
  struct Change {
    double load_s = 0;                 // time that it took to load
    std::vector<Precision> morphs_to;  // that its layers may have without being loaded again
  };

  // The model at this place of all models is loaded. `report` is of the plan that placed it; null:
  // it computes on all devices and never moves.
  void add(std::size_t place, std::shared_ptr<const PlanReport> report, Change change);
  void remove(std::size_t place);
  // The model was loaded again, or could not move: it stays for twice as many windows each time.
  // All models stay for a window after each change.
  void loaded(std::size_t place, double load_s);
  void failed_to_move(std::size_t place, TimeNs now_ns);
  // These devices have failed: nothing moves there.
  void lose(std::span<const int> devices);
  std::vector<int> lost() const;
  // Returns true if a model that was placed by this plan, or is to be, has a device that has
  // failed.
  bool uses_lost(const PlanReport& report) const;
  // Models that sleep keep so much of the free memory for themselves.
  void claim(std::int64_t bytes) { claimed_bytes_ = bytes; }

  // Returns true if a model may move: one was planned, among devices that have CPUs of their own.
  bool can_move() const;

  // Returns the share of the window in which each device was busy for models other than the one at
  // this place; empty if no model was planned.
  std::vector<double> device_loads(std::optional<std::size_t> without = {}) const;

  // See ModelLoader::choose_move().
  std::optional<ModelLoader::ModelToMove> choose_move(std::span<const ModelSample> samples,
                                                      TimeNs now_ns);

 private:
  struct Placed {
    std::shared_ptr<const PlanReport> report;
    Change change;
    ModelLoad load;
    int failures = 0;     // of moves in a row
    TimeNs stays_ns = 0;  // until then it does not move
  };

  const PlanReport* common_report() const;
  bool moves() const;
  bool add_samples(std::span<const ModelSample> samples, TimeNs now_ns);
  MovableModel movable(const Placed& placed, const ModelSample& sample, TimeNs now_ns) const;
  std::vector<DeviceState> devices_now() const;

  const bool may_move_;
  const TimeNs window_ns_;
  mutable std::mutex mutex_;
  std::map<std::size_t, Placed> placed_;
  std::set<int> lost_;     // devices
  TimeNs changed_ns_ = 0;  // when a model last came, went or changed
  TimeNs next_choice_ns_ = 0;
  std::atomic<std::int64_t> claimed_bytes_ = 0;
};

// Returns which devices of a plan failed: `failed` names them by their place in the model's form,
// whose devices have these CPUs. If it is empty, returns all devices of the model.
std::vector<int> devices_that_failed(const PlanReport& report, std::span<const CpuShare> cpus,
                                     std::vector<int> failed);

// Returns the plan of a model that moves: the plan before, with the estimates for the wish's load,
// and the configuration and the devices of its move.
std::shared_ptr<const PlanReport> report_of_move(const PlanReport& before, const IntentWish& wish);

}  // namespace protean
