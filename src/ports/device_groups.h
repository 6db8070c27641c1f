#pragma once

#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "contract/step.h"

namespace protean {

// Lets the devices of several replicas compute together, and apart again (AMOEBA section 3,
// KunServe section 4). A group is named by its first replica, whose Executor prepares and commits
// the group's HoldShards steps and reports them. All calls return at once and take effect after the
// entries given before.
//
// With join(), replicas of equal precisions become homes 0, 1, ... of one group. A replica may be a
// unified group itself; if it was divided by layers, the group divides layers too. Only pipelines
// may have unequal numbers of devices and blocks. Each home's sequences keep their blocks and are computed by its copy of a component, or by the only copy.
// Steps are given to start(), not to the Executors. HoldShards steps are committed one by one,
// between the steps that go on.
//
// unify() requires one copy of each layer's attention. The homes become one with the blocks of all,
// in turns (HomeBlocks). The first replica's Executor runs the group as one wide replica, and may
// resize its KV, to no fewer blocks. divide() is the reverse of unify(), when the KV cache has as
// many blocks again, and part() the reverse of join(), when each home has the copy of
// everything that it came with.
//
// No step of the replicas may be in flight, and no morph step pending, when one of these four is
// called.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;

  virtual void join(const std::vector<ReplicaId>& replicas) = 0;
  virtual void unify(ReplicaId group) = 0;
  virtual void divide(ReplicaId group) = 0;
  virtual void part(ReplicaId group) = 0;

  // Starts a step that computes rows of several homes at once: one plan for each home, without
  // tokens for a home that has nothing to compute, at least one with. Each plan's blocks are its
  // home's. A StepDone of each home's replica answers each plan with tokens; several such steps may
  // be in flight.
  virtual void start(ReplicaId group, std::vector<StepPlan> plans) = 0;

  // Names the blocks of each home that are referenced or cached, before a HoldShards step of
  // attention is committed: only they are copied. Holds until the next call.
  virtual void keep(ReplicaId group, std::vector<std::vector<BlockId>> live) = 0;
};

}  // namespace protean
