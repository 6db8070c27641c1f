#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/groups.h"
#include "fleet/regrouping.h"
#include "fleet/station.h"
#include "ports/event.h"
#include "ports/token_sink.h"

namespace protean {

// The groups of a fleet: which replicas serve as one, which shall, and the changes from one to the
// other. Changes of different replicas go on at the same time. A wish may come at any moment: a
// change under way then turns if the wish asks for the contrary. If a change fails, its replicas
// are to stay in the groups that they are in then.
// Single-threaded; all that it refers to must outlive it.
class Grouping {
 public:
  Grouping(GroupConfig config, std::vector<Station>& stations, TokenSink& sink);

  // Asks for groups. With `insists`, requests that find no room when a group parts are preempted.
  // Returns the changes that follow, or why the groups cannot be had.
  Result<std::vector<Regroup>> want(const GroupWish& wish, const std::string& reason, bool insists,
                                    TimeNs now_ns);

  // Returns true if the event was about a step of a regrouping.
  bool on(const MorphReady& ready, TimeNs now_ns);
  bool on(const MorphDone& done, TimeNs now_ns);
  void step_done(ReplicaId replica, TimeNs now_ns);  // before its engine is told
  // Does what can be done now. Must be called after each event.
  void advance(TimeNs now_ns);
  std::optional<TimeNs> next_deadline_ns() const;

  // A replica's devices have failed. Its group, if it is in one, parts without a step. Must be
  // called once the engines of engines_of() have given up their requests, and followed by
  // advance().
  void fail(ReplicaFailure failure);
  // A replica that is in no group has other devices, which work. Returns why it was out of service.
  // Must be followed by advance().
  ReplicaFailure mend(ReplicaId replica);
  // Returns the replicas whose engines depend on this replica's devices.
  std::vector<ReplicaId> engines_of(ReplicaId replica) const;
  // Returns the replicas whose devices this replica's engine depends on.
  std::vector<ReplicaId> devices_of(ReplicaId engine) const;
  // Returns true if one of these devices has failed.
  bool broken(ReplicaId engine) const;
  // Returns true if the replica's engine serves, and all devices that it depends on work.
  bool in_service(ReplicaId replica) const {
    return !stations_[index(replica)].parked && !broken(replica);
  }
  // Returns true if the replica's engine lives on. The engine of a broken group does until the
  // group has parted.
  bool engine_lives(ReplicaId replica) const;
  // Returns true if no replica is out of service.
  bool intact() const { return status_.failed.empty(); }
  // Returns true while devices of the group under this id change what they hold.
  bool committing(ReplicaId replica) const {
    const Regrouping* running = running_of(replica);
    return running != nullptr && running->committing() && running->group().homes.front() == replica;
  }

  // Returns true if the replica's engine changes now: no KV may migrate to it or from it.
  bool changes(ReplicaId replica) const { return running_of(replica) != nullptr; }
  // Returns true if the replica or group under this id is as it is wanted, and does not change.
  bool settled(ReplicaId first) const;
  // Returns true if replicas serve as one, under this replica's id.
  bool is_group(ReplicaId replica) const { return !groups_[index(replica)].empty(); }
  bool serves_by_layers(ReplicaId replica) const {
    return is_group(replica) && by(replica) == GroupBy::kLayers;
  }
  // Returns the KV blocks that the group under this id keeps at least, which are its homes'.
  std::int64_t least_kv_blocks(ReplicaId group) const {
    return groups_[index(group)].back().wide.kv.blocks;
  }
  // Returns the group under this id, which may wait to part.
  const Group& group(ReplicaId first) const {
    return waits_to_part(first) ? running_of(first)->group() : groups_[index(first)].back();
  }
  // Returns the form of a replica or group whose engine never changes it.
  const Form& loaded_form(ReplicaId first) const {
    const auto& nested = groups_[index(first)];
    return nested.empty() ? config_.form : nested.back().wide;
  }
  // Returns true if both are replicas alone, or groups that were made of equal homes in equal ways,
  // so that their devices hold the same and have each block at the same place.
  bool made_alike(ReplicaId a, ReplicaId b) const { return made_alike(nested_forms(), a, b); }
  // Returns true if these replicas, ascending, become a group by layers without one of their groups
  // parting first.
  bool join_at_once(const std::vector<ReplicaId>& replicas);
  GroupBy by(ReplicaId group) const { return groups_[index(group)].back().by; }
  const GroupConfig& config() const { return config_; }
  bool busy() const { return !running_.empty() || !at_rest_; }
  // Returns the homes of a group by `by` that parts although no operator asked for it.
  std::optional<std::vector<ReplicaId>> parting(GroupBy by) const;
  // Returns true if a group under this id parts although no operator asked for it, and serves until
  // a request has room in a home.
  bool waits_to_part(ReplicaId replica) const;
  // Returns the ids of all such groups.
  std::vector<ReplicaId> waiting_to_part() const;
  // Returns false if a group of so many replicas under this id has parted, and is not to form.
  bool stays(ReplicaId first, std::size_t replicas) const;
  // A step that failed, or a change that was given up or ordered back.
  struct Failure {
    std::vector<ReplicaId> replicas;  // of the change
    std::string why;
    bool stuck = false;  // the change goes neither way now, and is tried again later
  };
  // Returns the failures since the last call, and forgets them.
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }
  // Returns the replicas of each group that has parted since the last call, and forgets them.
  std::vector<std::vector<ReplicaId>> take_parted() { return std::exchange(parted_, {}); }
  std::vector<std::pair<RequestId, ReplicaId>> take_moved() { return std::exchange(moved_, {}); }
  // Returns all replicas that serve under this replica's id.
  std::vector<ReplicaId> replicas_of(ReplicaId replica) const;
  // Returns the replicas of the change that concerns this one now.
  std::vector<ReplicaId> changing(ReplicaId replica) const;
  // Returns the KV blocks that they have together once that change has ended.
  std::int64_t kv_blocks_ahead(ReplicaId changing) const;
  // Returns the replicas of each home of the group under this id.
  std::vector<std::vector<ReplicaId>> homes_of(ReplicaId group) const;
  std::shared_ptr<const GroupsStatus> status_if_changed();

 private:
  using Replicas = std::vector<ReplicaId>;
  struct Wanted {
    Replicas replicas;  // ascending
    std::optional<GroupBy> by;
    std::string reason;
    bool insists = false;
  };
  struct Change {
    Replicas homes;
    GroupBy by = GroupBy::kShards;
    bool together = true;
    const Wanted* wanted = nullptr;  // the group to which it leads
  };
  struct Growing {            // a group whose KV has not grown since it was formed
    std::int64_t record = 0;  // its number among all records
    int steps = 0;            // of the model, that the group has ended
  };
  // Groups without their engines, to look ahead: by first replica, the innermost group first.
  using NestedForms = std::vector<std::vector<GroupForms>>;

  static std::size_t index(ReplicaId replica) { return static_cast<std::size_t>(replica.value); }
  // `Nested` is GroupForms or Group.
  template <class Nested>
  static Replicas replicas_in(const std::vector<std::vector<Nested>>& groups, ReplicaId first,
                              std::size_t depth);
  std::vector<Replicas> groups_in(const NestedForms& ahead) const;
  NestedForms nested_forms() const;
  static bool made_alike(const NestedForms& ahead, ReplicaId a, ReplicaId b);
  std::optional<Change> next_change(const NestedForms& ahead, const Replicas& changing) const;
  Result<Regroup> look_ahead(const Change& change, NestedForms& ahead) const;
  Regrouping* running_of(ReplicaId home) const;
  Replicas replicas_of(const Regrouping& running) const;
  Result<Regroup> rest_of(const Regrouping& running, NestedForms& ahead) const;
  Form form_of(const NestedForms& ahead, ReplicaId replica) const;
  bool keeps_form(const NestedForms& ahead, const Change& change) const;
  std::vector<Form> forms_now(const NestedForms& ahead, const Replicas& homes) const;
  const Engine* engine_ahead(const NestedForms& ahead, ReplicaId home) const;
  std::optional<Result<GroupForms>> evens_out(const NestedForms& ahead, const Change& change) const;
  Regroup look_ahead_evened(const Change& change, GroupForms group_forms, NestedForms& ahead) const;
  Status check_shrink(GroupForms group_forms) const;
  Status check_homes(ReplicaId group, const NestedForms& ahead) const;
  Status check_wish(const GroupWish& wish) const;
  std::optional<GroupBy> divides_by(const Replicas& replicas) const;
  std::vector<Wanted> wanted_after(const GroupWish& wish, const std::string& reason,
                                   bool insists) const;
  void keep_groups(std::set<ReplicaId> kept);
  bool wanted_together(const Regrouping& running) const;
  void begin_all(TimeNs now_ns);
  void begin(const Change& change, TimeNs now_ns);
  void finish(std::unique_ptr<Regrouping> ended);
  void note_growth(TimeNs now_ns);

  const GroupConfig config_;
  std::vector<Station>& stations_;
  TokenSink& sink_;
  std::vector<std::vector<Group>> groups_;  // by first replica, the innermost group first
  std::vector<Wanted> wanted_;              // each replica is in one
  bool at_rest_ = true;                     // the wanted groups are there
  bool told_at_rest_ = false;
  std::vector<std::unique_ptr<Regrouping>> running_;  // in the order in which they began
  std::uint64_t generation_ = 0;
  std::vector<std::pair<RequestId, ReplicaId>> moved_;
  std::vector<Failure> failures_;
  std::vector<Replicas> parted_;
  std::map<ReplicaId, Growing> growing_;  // by first replica
  GroupsStatus status_;                   // history and counters
  std::string told_;                      // what the latest status said of the changes under way
};

}  // namespace protean
