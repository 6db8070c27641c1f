// How models fall asleep and wake.

#include <algorithm>
#include <utility>

#include "apps/renew_files.h"
#include "apps/replica_loader.h"
#include "base/log.h"
#include "base/units.h"
#include "device/cpu/low_priority.h"

namespace protean {

void ReplicaLoader::unload_now(std::size_t model) {
  Resident& resident = residents_[model];
  cpu::run_at_low_priority([&] { resident.replicas.reset(); });
  resident.model->inbox->reopen();
  log::info("{} sleeps until it is asked for", name_of(*resident.model));
  server_.fell_asleep(model);
  trim();
}

// Starts a model's replicas from its files as they are now.
Status ReplicaLoader::start(Resident& resident) {
  const Checkpoint* const read = resident.model->files->checkpoint.get();
  Status renewed = resident.failure.empty() ? renew_files(*resident.model) : lost(resident);
  if (resident.model->files->checkpoint.get() != read) {
    std::ranges::for_each(resident.held, &HeldRequest::weights_replaced);
  }
  if (!renewed.ok()) {
    return renewed;
  }
  learn_costs(*resident.model);  // at once if it is missing: requests wait for the model
  auto replicas = start_replicas(*resident.model, *resident.sink);
  if (!replicas.ok()) {
    return replicas.error();
  }
  resident.replicas = *std::move(replicas);
  return {};
}

// Starts a model's replicas, which take in the requests that were held.
Status ReplicaLoader::wake(std::size_t model) {
  Resident& resident = residents_[model];
  Status started = start(resident);
  if (started.ok()) {
    await_successor(model);
    resident.replicas->take_in(std::exchange(resident.held, {}));
    placements_.loaded(model, resident.model->load_s);
  }
  return started;
}

void ReplicaLoader::load_now(std::size_t model) {
  Resident& resident = residents_[model];
  if (resident.awaits_place || resident.replicas != nullptr) {
    return;
  }
  const TimeNs began_ns = steady_now_ns();
  if (const Status woke = attempt([&] { return wake(model); }); !woke.ok()) {
    log::error("{} does not wake: {}", name_of(*resident.model), woke.error().message);
    if (resident.replicas != nullptr) {
      resident.held = resident.replicas->end();
      cpu::run_at_low_priority([&] { resident.replicas.reset(); });
      resident.model->inbox->reopen();
    }
    fail_to_wake(model, woke.error());
    return;
  }
  const double took_s =
      static_cast<double>(steady_now_ns() - began_ns) / static_cast<double>(kNsPerS);
  server_.loaded(model, took_s);
  log::info("{} woke in {:.2f} s", name_of(*resident.model), took_s);
  server_.woke(model, {});
}

}  // namespace protean
