#include "fleet/formed_groups.h"

#include <algorithm>

#include "fleet/grouping.h"

namespace protean {

void FormedGroups::add(const std::vector<ReplicaId>& replicas, const Formed& formed) {
  const ReplicaId first = *std::min_element(replicas.begin(), replicas.end());
  formed_[{first, replicas.size()}] = formed;
}

void FormedGroups::forget(const GroupWish& wish) {
  for (const std::vector<ReplicaId>& replicas : wish.groups) {
    for (const ReplicaId replica : replicas) {
      std::erase_if(formed_, [&](const auto& one) { return one.first.first == replica; });
    }
  }
}

void FormedGroups::forget_parted(const Grouping& grouping) {
  std::erase_if(
      formed_, [&](const auto& one) { return !grouping.stays(one.first.first, one.first.second); });
}

const FormedGroups::Formed* FormedGroups::find(ReplicaId first, std::size_t replicas) const {
  const auto found = formed_.find({first, replicas});
  return found == formed_.end() ? nullptr : &found->second;
}

}  // namespace protean
