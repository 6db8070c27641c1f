#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/form.h"
#include "contract/groups.h"
#include "control/arrival_rate.h"
#include "control/load.h"
#include "control/outlook.h"
#include "engine/engine.h"
#include "fleet/formed_groups.h"
#include "fleet/grouping.h"
#include "fleet/station.h"

namespace protean {

// What `--scale joint` and `--drop joint` decide in a fleet: which groups form and part, by what
// that is predicted to save (docs/policy.md). Changes nothing in the fleet. All that it refers to
// must outlive it.
class Weighing {
 public:
  struct Proposal {
    GroupWish wish;
    std::string reason;
  };

  // `most_blocks` are the KV blocks of the largest group that the scale policy forms.
  Weighing(const Grouping& grouping, const std::vector<Station>& stations,
           const FormedGroups& formed, std::int64_t most_blocks);

  // Counts an accepted request that needs so many KV blocks until its end.
  void arrived(std::int64_t prompt_tokens, std::int64_t blocks, TimeNs now_ns);

  // Returns true at most ten times a second: then it is time to weigh.
  bool due(TimeNs now_ns);
  TimeNs next_ns() const { return next_ns_; }
  // Returns what pays, the best first: to keep a group that waits to part, to part one, or to form
  // one. One of them is enough until the next time.
  std::vector<Proposal> proposals(TimeNs now_ns);

 private:
  // A replica or group in service.
  struct Weighed {
    ReplicaId replica;
    int replicas = 1;
    FormView view;
  };
  struct LongArrival {
    TimeNs at_ns = 0;
    std::int64_t blocks = 0;
  };

  Engine& at(ReplicaId replica) const;
  bool is_joint(GroupBy by) const;
  std::ptrdiff_t long_arrivals_for(const Group& group) const;
  std::optional<Proposal> part_one(const std::vector<Weighed>& candidates, const Load& one,
                                   TimeNs now_ns);
  std::optional<Proposal> stay_together(ReplicaId replica, const std::vector<Weighed>& candidates,
                                        const Load& one, TimeNs now_ns) const;
  std::optional<Proposal> group_two(std::vector<Weighed> candidates, const Load& one);
  std::optional<std::vector<Weighed>> two_to_weigh(std::vector<Weighed> candidates);
  static Load load_of(std::span<const Weighed> candidates, const Load& one);
  Way as_homes(const Weighed& candidate, const Load& load, TimeNs now_ns) const;
  Form form_of(const Weighed& candidate) const;
  bool may_join(const Weighed& a, const Weighed& b) const;
  bool have_room(const Weighed& a, const Weighed& b);
  std::optional<Way> as_group(const std::vector<Weighed>& two, GroupBy by, const Load& load) const;
  double seconds_to_change(const FormView& view, const Load& load, int batches) const;
  double seconds_to_group(const FormView& view, const Load& load) const;
  double seconds_to_part(const FormView& view, GroupBy by, const Load& load) const;

  const Grouping& grouping_;
  const std::vector<Station>& stations_;
  const FormedGroups& formed_;
  const std::int64_t most_blocks_;
  ArrivalRate arrivals_;                   // of all requests
  std::deque<LongArrival> long_arrivals_;  // of requests that need a group
  // Whether two replicas or groups of unequal memory have room to become one with these forms.
  struct Room {
    std::array<Form, 2> homes;
    bool suffices = false;
  };
  std::map<std::pair<ReplicaId, ReplicaId>, Room> rooms_;  // since finding it out takes long
  TimeNs next_ns_ = 0;
};

}  // namespace protean
