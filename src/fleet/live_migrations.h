#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/units.h"
#include "contract/migrations.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "engine/engine.h"
#include "fleet/group_scaling.h"
#include "fleet/grouping.h"
#include "fleet/live_migration.h"
#include "fleet/station.h"
#include "ports/kv_exchange.h"

namespace protean {

// Requests that decode and move between the replicas and groups of a fleet with their KV, a few at
// a time. Single-threaded; all that it refers to must outlive it.
class LiveMigrations {
 public:
  // `seen` has each replica's latest observation. Without an exchange, requests stay where they
  // are.
  LiveMigrations(const Grouping& grouping, const std::vector<Station>& stations,
                 const std::vector<Observation>& seen, KvExchange* exchange);

  bool exchanges() const { return exchange_ != nullptr; }
  // Returns true if requests may move to the replica and from it.
  bool may_migrate(ReplicaId replica) const;
  // Chooses up to `requests` that decode in one replica to move to another, in the order of
  // Scheduler::all_decoding(). Returns how many were chosen. Requires an exchange.
  int choose(ReplicaId from, ReplicaId to, int requests, TimeNs now_ns);
  // Lets replicas and groups that run short of KV give requests to others, each one at a time.
  // Loads change by events only, so no clock is needed.
  void balance(const GroupScaling& scaling, TimeNs now_ns);

  // A copy has ended. Returns the replica that has the blocks; nothing if one of the two has failed
  // meanwhile.
  std::optional<ReplicaId> copied(CopyId id, TimeNs now_ns);
  // Lets the migrations go on whose request has left a step. Must be called after each event.
  void advance(TimeNs now_ns);
  // Devices that the replica's engine depends on have failed. Must be called before its requests
  // are given up.
  void forget(ReplicaId replica, TimeNs now_ns);

  // Returns true while blocks are copied to the replica.
  bool copies_to(ReplicaId replica) const;
  // Returns the requests that other replicas have now, and forgets them.
  std::vector<std::pair<RequestId, ReplicaId>> take_moved() { return std::exchange(moved_, {}); }
  // Returns which requests move, to be told; null if that has not changed.
  std::shared_ptr<const Migrations> changed();

 private:
  struct Migration {
    ReplicaId from;
    ReplicaId to;
    LiveMigration steps;
  };
  struct ToMigrate {
    RequestId request;
    ReplicaId from;
    ReplicaId to;
  };

  Engine& at(ReplicaId replica) const;
  bool begin_queued(TimeNs now_ns);
  bool begin(const ToMigrate& next, TimeNs now_ns);
  std::optional<RequestId> to_give(std::size_t giver, std::size_t taker) const;
  bool migrates(ReplicaId replica) const;
  Migrations listed() const;
  void follow(CopyId id, std::optional<std::vector<BlockMove>> blocks);

  const Grouping& grouping_;
  const std::vector<Station>& stations_;
  const std::vector<Observation>& seen_;
  KvExchange* const exchange_;
  std::map<CopyId, Migration> running_;
  std::deque<ToMigrate> queued_;  // not begun yet
  std::uint64_t last_copy_ = 0;
  std::vector<std::pair<RequestId, ReplicaId>> moved_;
  Migrations told_;
};

}  // namespace protean
