#pragma once

#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "contract/morph.h"
#include "ports/event.h"

namespace protean {

// Copies KV blocks between the executors of two replicas or groups. Blocks of both have as many
// tokens, and each device gets what it holds of a block from the devices that hold it there.
class KvExchange {
 public:
  virtual ~KvExchange() = default;

  // Copies each block `from` of one replica to block `to` of another and returns at once; a group
  // goes by its first replica. The copy takes place after the steps that the other has started and
  // before any later one. One BlocksCopied event with the id, of the replica that received,
  // follows, unless devices of either fail before. Until then, no step may write to the blocks of
  // either, and no device may change which heads it holds. A unified group must have computed
  // a step since its replicas were unified.
  virtual void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) = 0;

  // The executor of a fleet's only replica has been succeeded by another one (Fleet::succeed()),
  // which reports under the replica's id from now on. The fleet calls the former executor no more.
  virtual void succeeded() {}
};

}  // namespace protean
