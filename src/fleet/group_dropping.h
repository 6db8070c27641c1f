#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/observation.h"
#include "fleet/dropping.h"
#include "fleet/grouping.h"
#include "fleet/station.h"

namespace protean {

// What `--drop paper` and `--drop released` do in a fleet: groups by layers form while queued
// requests lack KV (KunServe section 4.1), and part once KV in use fits without a drop. Asks the
// grouping for both, and changes nothing else. All that it refers to must outlive it.
class GroupDropping {
 public:
  enum class Outcome : std::uint8_t {
    kNothingToAsk,  // no further group is to form
    kAsked,
    kRefused,  // none of the groups that were planned can be had now
  };

  // `seen` has each replica's latest observation.
  GroupDropping(Grouping& grouping, const std::vector<Station>& stations,
                const std::vector<Observation>& seen)
      : grouping_(grouping), stations_(stations), seen_(seen) {}

  // Forms or parts groups by layers if the paper's policy finds a reason. Replicas that change
  // already go on with that. Unless it `may_ask`, only keeps groups that wait to part.
  Outcome drop_or_restore(bool may_ask, TimeNs now_ns);

  // Forms or parts groups by layers if the replicas vote for it.
  Outcome vote(TimeNs now_ns);
  // Returns when to vote again although nothing has happened; nothing if only events can change
  // the outcome.
  std::optional<TimeNs> next_vote_ns() const { return vote_.next_ns(); }

 private:
  const Engine& engine_of(ReplicaId replica) const {
    return *stations_[static_cast<std::size_t>(replica.value)].engine;
  }
  std::vector<DropCandidate> candidates() const;
  std::vector<DropHolding> holdings(std::span<const DropCandidate> candidates, bool unequal) const;
  Outcome drop_copies(std::span<const DropCandidate> candidates, bool unequal, TimeNs now_ns);
  bool keep_dropped(TimeNs now_ns);
  void restore(std::vector<DropCandidate> all, TimeNs now_ns);

  Grouping& grouping_;
  const std::vector<Station>& stations_;
  const std::vector<Observation>& seen_;
  DropVote vote_;  // of `--drop released`
};

}  // namespace protean
