#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/groups.h"

namespace protean {

class Grouping;

// Groups that policies other than `--drop paper` and `released` formed, until they part or an
// operator asks for them.
class FormedGroups {
 public:
  struct Formed {
    TimeNs since_ns = 0;
    bool for_long = false;  // for a request that no replica could hold
  };

  void add(const std::vector<ReplicaId>& replicas, const Formed& formed);
  // Forgets the groups that an operator names: they are the operator's.
  void forget(const GroupWish& wish);
  // Forgets the groups that have parted.
  void forget_parted(const Grouping& grouping);

  // Returns the group of so many replicas under this id; null if no policy formed it.
  const Formed* find(ReplicaId first, std::size_t replicas) const;
  bool empty() const { return formed_.empty(); }

 private:
  // By first replica and number of replicas.
  std::map<std::pair<ReplicaId, std::size_t>, Formed> formed_;
};

}  // namespace protean
