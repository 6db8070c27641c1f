// How models with an intent leave devices that have failed.

#include <fmt/ranges.h>

#include <utility>

#include "apps/replica_loader.h"
#include "base/log.h"

namespace protean {

void ReplicaLoader::lose(std::size_t model, const ReplicaFailure& failure) {
  give_short([this, model, failure] { lose_now(model, failure); });
}

// A device that hangs keeps its memory, which is no free memory any more.
void ReplicaLoader::lose_now(std::size_t model, const ReplicaFailure& failure) {
  Resident& resident = residents_[model];
  const OpenModel& served = *resident.model;
  const std::vector<int> devices =
      devices_that_failed(*served.report, served.replica.sizing.cpus, failure.devices);
  resident.failure = fmt::format("device {} {}", fmt::join(devices, " or "), failure.why);
  log::error("{}: {}, and takes no further models: this one is placed anew", name_of(served),
             resident.failure);
  placements_.lose(devices);
  unload_now(model);
}

// Plans with the devices that are left, and serves the model by another copy at once, which keeps
// its requests until it is loaded: nothing works in the former one, which sleeps.
void ReplicaLoader::place_anew(std::size_t model, const IntentWish& wish) {
  const std::shared_ptr<OpenModel> before = residents_[model].model;
  if (before == nullptr) {
    return;
  }
  OpenOptions options = open_options();
  options.device_loads = placements_.device_loads(model);
  auto opened = plan([&, free = unclaimed_bytes() + memory_now(*before)] {
    return open_for_intent(*before, wish, options, free);
  });
  if (!opened.ok()) {
    fail_to_replace(model, opened.error());
    return;
  }
  opened->load_s = before->load_s;  // until it is loaded
  server_.planned(model, opened->plan);
  server_.changes(model, {std::nullopt, residents_[model].failure});
  Resident resident = open(*std::move(opened));
  server_.replaced(model, {resident.sink, false});
  add(std::move(resident));
}

}  // namespace protean
