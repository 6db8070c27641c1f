// How changes of models fail or are taken back, and how models leave devices that have failed.

#include <fmt/ranges.h>

#include <utility>

#include "apps/hand_over.h"
#include "apps/replica_loader.h"
#include "base/log.h"

namespace protean {

void ReplicaLoader::forget_replacement(std::size_t model) {
  give_short([this, model] { residents_[model].next.reset(); });
}

void ReplicaLoader::fail_to_replace(std::size_t model, const Error& error) {
  placements_.failed_to_move(model, steady_now_ns());
  if (std::exchange(residents_[model].awaits_place, false)) {
    server_.woke(model, error);
  }
  server_.not_replaced(model, error);
}

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
  resident.awaits_place = true;
  placements_.lose(devices);
  unload_now(model);
}

Status ReplicaLoader::lost(const Resident& resident) {
  return make_error(ErrorCode::kUnavailable,
                    "{}: place the model on others with PUT /admin/intent, or start the server "
                    "again",
                    resident.failure);
}

// Plans with the devices that are left, and loads the model there. Its requests wait for that: it
// sleeps, since nothing works where it was. It may be removed meanwhile.
void ReplicaLoader::place_anew(std::size_t model, const IntentWish& wish) {
  const std::shared_ptr<OpenModel> before = residents_[model].model;
  if (before == nullptr) {
    return;
  }
  OpenOptions options = open_options(tell_change(model));
  options.device_loads = placements_.device_loads(model);
  auto opened = plan([&, free = unclaimed_bytes() + memory_now(*before)] {
    return open_for_intent(*before, wish, options, free);
  });
  const Status possible =
      opened.ok() ? check_hand_over(*before, *opened, false) : Status(opened.error());
  if (!possible.ok()) {
    fail_to_replace(model, possible.error());
    return;
  }
  Resident& resident = residents_[model];
  if (resident.model == nullptr) {
    return;
  }
  server_.planned(model, opened->plan);
  server_.changes(model, {std::nullopt, std::exchange(resident.failure, {})});
  resident.awaits_place = false;
  opened->load_s = before->load_s;  // until it is loaded
  server_.succeeded(model, take_over(*before, *std::move(opened)));
  add_placement(model);
  load_now(model);
}

}  // namespace protean
