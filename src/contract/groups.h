#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/device_use.h"
#include "contract/form.h"
#include "contract/morph.h"

namespace protean {

// How replicas that become one group divide what each of them holds whole: the shards of every
// layer (tensor parallelism, AMOEBA), or the layers (pipeline parallelism, KunServe).
enum class GroupBy : std::uint8_t { kShards, kLayers };

std::string_view to_string(GroupBy by);

// Returns "0, 1".
std::string names_of(const std::vector<ReplicaId>& replicas);

// Which replicas are to serve as one. Replicas that no group names stay as they are.
struct GroupWish {
  std::vector<std::vector<ReplicaId>> groups;
  GroupBy by = GroupBy::kShards;  // how new groups divide the model
};

// One change of groups: replicas become one group, or a group becomes its replicas again.
struct Regroup {
  std::vector<ReplicaId> replicas;  // the first replica of each home, which names it
  GroupBy by = GroupBy::kShards;
  bool together = true;
  Morph morph;  // steps that change what devices hold
};

// The record of one change of groups. Times are negative if it never got so far. Times of phases
// are in the order of the fields if replicas become one group, and of the latest turn if the change
// turned back.
struct RegroupRecord {
  std::vector<ReplicaId> replicas;
  GroupBy by = GroupBy::kShards;
  bool together = true;  // in the end
  std::string reason;
  TimeNs asked_ns = -1;
  TimeNs begun_ns = -1;    // the homes' steps were first run jointly
  TimeNs settled_ns = -1;  // the last step of the morph was committed
  TimeNs done_ns = -1;
  TimeNs grown_ns = -1;  // a group had more KV blocks than its replicas had before
  int steps = 0;         // committed steps of the morph
  // Steps of the model that the first replica ended between asked_ns and grown_ns, or done_ns if
  // that is -1.
  int steps_meanwhile = 0;
  std::int64_t blocks_moved = 0;  // blocks that were copied to other homes
  std::int64_t kv_bytes = 0;      // KV that devices received from others
  std::int64_t weight_bytes = 0;  // weights that devices fetched
  int preempted = 0;              // requests that found no room in a home
  int recomputed = 0;             // requests whose KV was dearer to move than to compute again
  std::string failure;            // why it turned back or was given up; empty: it did not

  bool succeeded() const { return begun_ns >= 0 && failure.empty(); }
};

// Replicas that serve as one. Names itself by its first replica.
struct GroupStatus {
  std::vector<ReplicaId> replicas;
  std::optional<GroupBy> by;  // nothing: a replica alone
  std::optional<Form> form;   // what its devices hold, if replicas can be grouped
  DeviceUse use;              // by its steps; told to operators only
};

// A replica whose devices failed.
struct ReplicaFailure {
  ReplicaId replica;
  TimeNs at_ns = 0;
  std::string why;
  std::vector<int> devices = {};  // by their place in the replica's form; empty: any of them may be
};

// A change of groups that has not ended.
struct RunningRegroup {
  RegroupRecord record;
  std::string stage;               // such as "joint steps"
  std::string waits_for;           // why it waits; empty: it does not
  std::optional<Form> joint_form;  // what the devices hold while steps are joint
};

// The groups of a fleet, for operators.
struct GroupsStatus {
  std::vector<GroupStatus> groups;
  std::vector<RunningRegroup> running;  // of different replicas, in the order of their beginnings
  std::vector<RegroupRecord> history;   // the latest ones, oldest first
  std::int64_t together_total = 0;      // changes that ended in one group
  std::int64_t apart_total = 0;         // changes that ended in several replicas
  std::int64_t failures_total = 0;      // changes that turned back or were given up
  std::int64_t records_total = 0;       // records ever put into the history
  std::int64_t kv_bytes_total = 0;      // of all changes, as in RegroupRecord
  std::int64_t weight_bytes_total = 0;
  std::vector<ReplicaFailure> failed;  // replicas that are out of service
};

}  // namespace protean
