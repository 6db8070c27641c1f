#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "fleet/grouping.h"
#include "fleet/live_migrations.h"
#include "fleet/station.h"

namespace protean {

// Finds devices of a fleet that have something to do and end nothing. All that it refers to must
// outlive it.
class DeviceWatch {
 public:
  DeviceWatch(const Grouping& grouping, const std::vector<Station>& stations,
              const LiveMigrations& migrations);

  // Devices that end nothing for so long have failed; 0: they never fail.
  void set_timeout(ReplicaId replica, TimeNs timeout_ns) { at(replica).timeout_ns = timeout_ns; }
  TimeNs timeout_ns(std::size_t index) const { return watches_[index].timeout_ns; }
  // The replica's executor has ended something.
  void ended(ReplicaId replica, TimeNs now_ns);
  // A group of these replicas has parted. Their devices still meet before they do anything else.
  void parted(std::vector<ReplicaId> replicas) { partings_.push_back(std::move(replicas)); }
  // The replica's devices have failed. Engines that may have waited for them have the whole time
  // again.
  void failed(ReplicaId replica);

  // Looks at a replica. If `idle_ns`, the time since the latest event, is long, such as in a
  // stopped process, no device is blamed. Returns the replicas whose devices are late and hold up
  // its engine.
  std::vector<ReplicaId> late_steps(std::size_t index, TimeNs idle_ns, TimeNs now_ns);
  // Returns true if its own devices are late with something that they prepare.
  bool prepares_late(std::size_t index, TimeNs idle_ns, TimeNs now_ns);
  // Returns for how long no look is needed; nothing if no device has anything to do.
  std::optional<TimeNs> look_within_ns() const;

 private:
  // For how long the executor of a replica's engine has something to do and nothing has ended, and
  // its devices have prepared nothing more.
  struct Watch {
    TimeNs timeout_ns = 0;
    TimeNs since_ns = -1;                 // -1: it has nothing to do
    std::optional<std::uint64_t> pieces;  // nothing: its devices prepare nothing
    TimeNs pieces_since_ns = -1;
  };

  Watch& at(ReplicaId replica) { return watches_[static_cast<std::size_t>(replica.value)]; }
  bool awaits_devices(std::size_t index) const;
  std::vector<ReplicaId> holding_up(const std::vector<ReplicaId>& suspects) const;
  std::vector<ReplicaId> with_partings(std::vector<ReplicaId> replicas) const;
  std::optional<std::uint64_t> pieces_prepared(std::size_t index) const;

  const Grouping& grouping_;
  const std::vector<Station>& stations_;
  const LiveMigrations& migrations_;
  std::vector<Watch> watches_;                    // by replica
  std::vector<std::vector<ReplicaId>> partings_;  // of which no device has ended anything since
};

}  // namespace protean
