#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace protean {

// Replicas of one model that serve as a group: each replica is a stage of its pipeline. A replica
// alone is a group of one.
struct DropGroup {
  std::vector<int> replicas;         // ids, in the order of stages
  std::int64_t layer_bytes = 0;      // weights of all layers, of which it has one copy
  std::int64_t embedding_bytes = 0;  // of the embedding matrix and LM head, of which it has a copy
                                     // in the first stage and one in the last

  friend bool operator==(const DropGroup&, const DropGroup&) = default;
};

// Two groups become one, which drops the smaller copy of the layers and what stages inside hold of
// the embedding matrix and LM head.
struct DropMerge {
  DropGroup into;
  std::int64_t freed_bytes = 0;
};

struct DropPlan {
  std::vector<DropMerge> merges;  // in order
  std::vector<DropGroup> groups;  // all groups after them, by their first replica
  std::int64_t freed_bytes = 0;
};

// KunServe's drop plan (section 4.1, figure 6): merges the two smallest groups, again and again,
// until the copies that this frees meet the requirement, or nothing more can be freed. Few replicas
// in a group mean short pipelines, which lose least. A replica keeps at least one layer, so a group
// has at most `layers` replicas. Takes O(N log N).
DropPlan plan_drop(std::span<const DropGroup> groups, std::int64_t required_bytes, int layers);

}  // namespace protean
