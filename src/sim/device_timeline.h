#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/units.h"
#include "contract/device_use.h"
#include "contract/holding.h"
#include "cost/group_cost.h"
#include "cost/step_work.h"

namespace protean {

// A stretch of a step's way, and the copy that computes the rows of each home.
struct HomesStretch {
  Stretch stretch;
  std::vector<std::size_t> copy_of_home;
};

// Returns the way of a step through a form whose devices belong to homes. A home's rows are
// computed by the copy on its own devices, else by the first copy.
std::vector<HomesStretch> way_of(std::vector<Stretch> stretches, std::span<const Copy> homes);

// When the devices of a group are busy. Steps pass through their stretches in the order in which
// they are started, so a device computes one step after the other.
class DeviceTimeline {
 public:
  // Times that a step takes.
  struct Times {
    std::function<TimeNs(std::size_t devices, const StepWork& work, const DeviceWork& part)>
        compute;
    // Sends a step's rows, once they are ready, to other devices. Returns when they arrive.
    std::function<TimeNs(const StepWork& work, const Copy& to, TimeNs ready_ns)> send;
  };

  explicit DeviceTimeline(std::vector<TimeNs> free_ns) : free_ns_(std::move(free_ns)) {}

  // Starts a step with the work of each home, and returns when each home's rows are computed.
  std::vector<TimeNs> run(std::span<const HomesStretch> way, std::span<const StepWork> works,
                          TimeNs now_ns, const Times& times);

  // Lets all devices wait for each other and then be busy for so long. Returns the end.
  TimeNs meet(TimeNs now_ns, TimeNs busy_ns);

  TimeNs all_free_ns() const;
  const std::vector<TimeNs>& free_ns() const { return free_ns_; }
  // Counts the steps of pipelines; elsewhere no modelled device waits for another one.
  const DeviceUse& pipeline() const { return pipeline_; }

 private:
  std::vector<TimeNs> free_ns_;  // when each device has done all that was started
  DeviceUse pipeline_;
  TimeNs counted_until_ns_ = 0;  // the span up to here is counted
};

}  // namespace protean
