#pragma once

#include <vector>

#include "base/replica_id.h"

namespace protean {

// Requests that move with their KV from one replica to another.
struct MigratingRequests {
  ReplicaId from;
  ReplicaId to;
  int moving = 0;  // their KV is being copied
  int queued = 0;  // chosen, and not begun yet

  friend bool operator==(const MigratingRequests&, const MigratingRequests&) = default;
};

// All of a fleet, by `from` and `to`.
using Migrations = std::vector<MigratingRequests>;

}  // namespace protean
