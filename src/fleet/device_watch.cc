#include "fleet/device_watch.h"

#include <algorithm>
#include <iterator>

namespace protean {
namespace {

// Devices are late by at most one look, which is short next to the timeout.
constexpr int kLooksPerTimeout = 16;

bool share_one(const std::vector<ReplicaId>& a, const std::vector<ReplicaId>& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

}  // namespace

DeviceWatch::DeviceWatch(const Grouping& grouping, const std::vector<Station>& stations,
                         const LiveMigrations& migrations)
    : grouping_(grouping),
      stations_(stations),
      migrations_(migrations),
      watches_(stations.size()) {}

// Returns true while the replica's executor has something to end that is watched.
bool DeviceWatch::awaits_devices(std::size_t index) const {
  const ReplicaId replica{static_cast<std::int32_t>(index)};
  return watches_[index].timeout_ns != 0 && grouping_.engine_lives(replica) &&
         (migrations_.copies_to(replica) || stations_[index].engine->awaits_executor() ||
          grouping_.committing(replica));
}

// Returns nothing unless the replica's own devices are watched and prepare something, whichever
// engine asked for it.
std::optional<std::uint64_t> DeviceWatch::pieces_prepared(std::size_t index) const {
  const Station& station = stations_[index];
  const bool watched = watches_[index].timeout_ns != 0 && station.failure.empty();
  return watched ? station.executor->own().pieces_prepared() : std::nullopt;
}

void DeviceWatch::ended(ReplicaId replica, TimeNs now_ns) {
  at(replica).since_ns = now_ns;
  if (!partings_.empty()) {
    std::erase_if(partings_, [devices = grouping_.devices_of(replica)](const auto& parting) {
      return share_one(parting, devices);
    });
  }
}

void DeviceWatch::failed(ReplicaId replica) {
  const std::vector<ReplicaId> waiting = with_partings({replica});
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    if (share_one(grouping_.devices_of(ReplicaId{static_cast<std::int32_t>(i)}), waiting)) {
      watches_[i].since_ns = -1;
    }
  }
}

// Returns the replicas of which a device computes or copies now, rather than waiting for others.
std::vector<ReplicaId> DeviceWatch::holding_up(const std::vector<ReplicaId>& suspects) const {
  std::vector<ReplicaId> guilty;
  std::copy_if(suspects.begin(), suspects.end(), std::back_inserter(guilty), [this](ReplicaId one) {
    const Station& station = stations_[static_cast<std::size_t>(one.value)];
    return station.failure.empty() && station.executor->own().holds_up();
  });
  return guilty;
}

// Adds every replica that parted from one of these and has not met it since, directly or through
// others.
std::vector<ReplicaId> DeviceWatch::with_partings(std::vector<ReplicaId> replicas) const {
  for (std::size_t before = 0; before != replicas.size();) {
    before = replicas.size();
    for (const std::vector<ReplicaId>& parting : partings_) {
      if (share_one(parting, replicas)) {
        std::copy_if(parting.begin(), parting.end(), std::back_inserter(replicas),
                     [&](ReplicaId one) { return !share_one({one}, replicas); });
      }
    }
  }
  return replicas;
}

std::vector<ReplicaId> DeviceWatch::late_steps(std::size_t index, TimeNs idle_ns, TimeNs now_ns) {
  Watch& watch = watches_[index];
  if (!awaits_devices(index)) {
    watch.since_ns = -1;
    return {};
  }
  const bool paused =
      idle_ns > watch.timeout_ns / 2 || stations_[index].executor->own().awaits_turn();
  watch.since_ns = watch.since_ns < 0 || paused ? now_ns : watch.since_ns;
  if (now_ns - watch.since_ns < watch.timeout_ns) {
    return {};
  }
  watch.since_ns = -1;
  std::vector<ReplicaId> suspects =
      grouping_.devices_of(ReplicaId{static_cast<std::int32_t>(index)});
  std::vector<ReplicaId> guilty = holding_up(suspects);
  if (guilty.empty()) {
    guilty = holding_up(with_partings(suspects));
  }
  return guilty.empty() ? suspects : guilty;
}

bool DeviceWatch::prepares_late(std::size_t index, TimeNs idle_ns, TimeNs now_ns) {
  Watch& watch = watches_[index];
  const auto pieces = pieces_prepared(index);
  const bool paused = idle_ns > watch.timeout_ns / 2;
  if (!pieces || pieces != watch.pieces || paused) {
    watch.pieces = pieces;
    watch.pieces_since_ns = now_ns;
    return false;
  }
  return now_ns - watch.pieces_since_ns >= watch.timeout_ns;
}

std::optional<TimeNs> DeviceWatch::look_within_ns() const {
  std::optional<TimeNs> within_ns;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    if (awaits_devices(i) || pieces_prepared(i)) {
      const TimeNs look_ns = watches_[i].timeout_ns / kLooksPerTimeout;
      within_ns = std::min(within_ns.value_or(look_ns), look_ns);
    }
  }
  return within_ns;
}

}  // namespace protean
