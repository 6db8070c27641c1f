// The groups that there are, for looking ahead.

#include <algorithm>

#include "fleet/grouping.h"

namespace protean {

Grouping::Shapes Grouping::shapes() const {
  Shapes shapes(groups_.size());
  for (std::size_t first = 0; first < groups_.size(); ++first) {
    for (const Group& group : groups_[first]) {
      shapes[first].push_back({group.homes, group.by, group.home, group.wide});
    }
  }
  return shapes;
}

// Returns true if both are replicas alone, or groups that were made of equal homes in equal ways,
// so that their devices hold the same and have each block at the same place.
bool Grouping::made_alike(const Shapes& shapes, ReplicaId a, ReplicaId b) {
  const std::vector<Shape>& these = shapes[index(a)];
  const std::vector<Shape>& those = shapes[index(b)];
  return std::equal(
      these.begin(), these.end(), those.begin(), those.end(), [&](const Shape& x, const Shape& y) {
        return x.by == y.by && x.home == y.home && x.wide == y.wide &&
               std::equal(x.homes.begin() + 1, x.homes.end(), y.homes.begin() + 1, y.homes.end(),
                          [&](ReplicaId c, ReplicaId d) { return made_alike(shapes, c, d); });
      });
}

Form Grouping::form_of(const Shapes& shapes, ReplicaId replica) const {
  const auto& nested = shapes[index(replica)];
  if (!nested.empty()) {
    return nested.back().wide;
  }
  if (running_ && running_->concerns(replica) && !running_->group().home.group.empty()) {
    return running_->group().home;
  }
  const auto& groups = groups_[index(replica)];  // a group may part before
  const Engine& engine = groups.empty() ? *stations_[index(replica)].engine : *groups.front().first;
  return engine.form().value_or(config_.form);
}

}  // namespace protean
