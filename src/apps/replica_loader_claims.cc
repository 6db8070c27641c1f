// What a server's models claim of its memory, and on which devices they compute.

#include <algorithm>

#include "apps/replica_loader.h"
#include "host/machine.h"

namespace protean {

// Models that sleep keep their claim to the memory in which they wake, and models that trade to the
// pages of their quotas that have no memory yet. Accounts are read before pages: what leaves a page
// meanwhile is counted. A model that is being loaded claims all of its memory.
std::int64_t ReplicaLoader::claimed_bytes() const {
  std::int64_t bytes = defaults_.memory != nullptr ? defaults_.memory->claimed_bytes() : 0;
  for (const Resident& resident : residents_) {
    if (resident.replicas != nullptr) {
      bytes -= resident.replicas->traded_bytes();
    } else if (resident.model != nullptr) {
      bytes += memory_now(*resident.model);
    }
  }
  return std::max<std::int64_t>(0, bytes);
}

// Returns the memory that a further model may take. Models may trade between two looks, so that
// what one of them gave is free but was not claimed before.
std::int64_t ReplicaLoader::unclaimed_bytes() const {
  const std::int64_t claimed = claimed_bytes();
  const std::int64_t free = free_memory_bytes();
  return free - std::max(claimed, claimed_bytes());
}

void ReplicaLoader::add_placement(std::size_t model) {
  const OpenModel& served = *residents_[model].model;
  placements_.add(model, served.report, {served.load_s, morphs_to(served)});
  server_.loaded(model, served.load_s);
  await_successor(model);
}

std::optional<ModelLoader::ModelToMove> ReplicaLoader::choose_move(
    std::span<const ModelSample> samples) {
  return placements_.choose_move(samples, steady_now_ns());
}

}  // namespace protean
