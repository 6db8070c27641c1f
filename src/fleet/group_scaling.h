#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/groups.h"
#include "contract/observation.h"
#include "contract/request.h"
#include "fleet/formed_groups.h"
#include "fleet/grouping.h"
#include "fleet/held_request.h"
#include "fleet/router.h"
#include "fleet/scaling.h"
#include "fleet/station.h"

namespace protean {

// What `--scale` decides in a fleet: which requests wait for a group (AMOEBA section 3.3), which
// replicas become it, and when it parts. Changes nothing. All that it refers to must outlive it.
class GroupScaling {
 public:
  // `seen` has each replica's latest observation.
  GroupScaling(const Grouping& grouping, const std::vector<Station>& stations,
               const std::vector<Observation>& seen, const FormedGroups& formed);

  // Returns true if the policy may form groups.
  bool forms_groups() const { return blocks_of_.size() > 1; }
  // Returns the KV blocks of the largest group that the policy forms.
  std::int64_t most_blocks() const { return blocks_of_.back(); }
  // Returns the KV blocks that a request needs until its end.
  std::int64_t blocks_needed(const Request& request) const;
  std::int64_t blocks_needed(const HeldRequest& held) const;
  // Returns true if a group could hold the request.
  bool could_grow_for(const Request& request) const;
  // Returns a replica whose devices have failed, if a group could hold the request with it and none
  // can without.
  std::optional<ReplicaId> failed_but_needed(const Request& request) const;
  // Returns true if a held request waits behind another. Groups by layers do not grow: those that a
  // stream of long requests keeps in use would never part for a longer request.
  bool queues_behind(const HeldRequest& held) const { return queues_behind(blocks_needed(held)); }

  // Returns a replica or group as the policy sees it.
  ScaleCandidate candidate_of(std::size_t index) const;
  // Returns true if the policy lets a group wait for its end, or for room in its replicas.
  bool closes(std::size_t index) const;

  // Returns true if an arriving request waits: no candidate can hold it now and a group could, or
  // it waits behind others.
  bool must_wait(const Request& request, const RouteCandidates& candidates, bool others_wait) const;
  // Lets candidates that are too small for a request count as if they could hold it, if the policy
  // lets them grow with their neighbours. Returns their indices.
  std::vector<std::size_t> overlook_length(const Request& request,
                                           RouteCandidates& candidates) const;
  // Leaves a request that needs a group to the widest one that takes it (section 3.3), and any
  // other to replicas that are not about to part.
  void narrow_down(const Request& request, RouteCandidates& candidates) const;

  struct Place {
    std::optional<ReplicaId> replica;
    bool too_late = false;  // a replica could hold the request, but not answer in time now
  };
  // Returns the widest group that can hold a held request, among equals the least loaded one.
  Place place_for(const HeldRequest& held, TimeNs now_ns) const;
  // Returns the homes of a group that parts and could hold a held request.
  std::optional<std::vector<ReplicaId>> parting_for(const HeldRequest& held) const;
  // Returns the candidates that are to become one next for a held request. Groups by layers stay
  // as they are, because their devices do not join others.
  std::optional<std::vector<ReplicaId>> homes_for(const HeldRequest& held) const;
  // Returns the wish for one group of several.
  GroupWish one_of(const std::vector<ReplicaId>& homes) const;
  // Returns true if no replica's form is about to change.
  bool forms_at_rest() const;
  // Returns true if there are groups by layers that are sure to part: those that the policy formed,
  // and all of them with `--drop paper`.
  bool layers_return() const;
  // Returns the homes of a group that is to part: it was formed for long requests, these have ended
  // and enough of its KV is free.
  std::optional<GroupWish> to_part() const;

 private:
  ScalePolicy policy() const { return grouping_.config().scale; }
  Engine& at(ReplicaId replica) const;
  bool in_service(std::size_t index) const;
  std::int64_t blocks_needed(std::int64_t prompt, std::int64_t max_tokens) const;
  bool queues_behind(std::int64_t blocks) const;
  int longest_tokens() const;
  bool homes_hold(std::size_t homes, std::int64_t blocks) const;
  void pass_over_closing(RouteCandidates& candidates) const;
  void pass_over_narrow(RouteCandidates& candidates) const;

  const Grouping& grouping_;
  const std::vector<Station>& stations_;
  const std::vector<Observation>& seen_;
  const FormedGroups& formed_;
  // KV blocks of a group of 2^k replicas. One entry: the policy forms none.
  const std::vector<std::int64_t> blocks_of_;
};

}  // namespace protean
