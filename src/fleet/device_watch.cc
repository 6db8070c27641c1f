#include "fleet/device_watch.h"

#include <algorithm>
#include <iterator>

namespace protean {
namespace {

constexpr int kLooksPerTimeout = 4;

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
  std::vector<ReplicaId> guilty;
  std::copy_if(suspects.begin(), suspects.end(), std::back_inserter(guilty), [this](ReplicaId one) {
    const Station& station = stations_[static_cast<std::size_t>(one.value)];
    return station.failure.empty() && station.executor->own().holds_up();
  });
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
