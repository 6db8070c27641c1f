#pragma once

#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "contract/morph.h"
#include "ports/event.h"

namespace protean {

// Copies KV blocks between the executors of two replicas or groups. Blocks have the same number of
// tokens, and shards are equally many; the devices of each may divide them differently.
class KvExchange {
 public:
  virtual ~KvExchange() = default;

  // Copies each block `from` of one replica to block `to` of another and returns at once. The copy
  // takes place after the steps that the other has started and before any later one. One
  // BlocksCopied event with the id, of the replica that received, follows. Until then, no step may
  // write to the blocks of either.
  virtual void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) = 0;
};

}  // namespace protean
