#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace protean {

// Replicas of one model that serve as a group: each replica is a stage of its pipeline. A replica
// alone is a group of one.
struct DropGroup {
  std::vector<int> replicas;      // ids, in the order of stages
  std::int64_t layer_bytes = 0;   // weights of all layers, of which it has one copy
  std::int64_t memory_bytes = 0;  // of each stage, for layers and KV; the least of them
  std::int64_t kv_bytes = 0;      // that it has now
};

// Two groups become one, which drops the smaller copy of the layers. `freed_bytes` is the KV that
// the replicas gain by it: the whole copy if their layers divide among the stages without rest,
// else less, because all stages have as many blocks as the one with the most layers. The embedding
// matrix and LM head make no room for KV: the first and the last stage keep them. `into` has the
// KV that its replicas had before.
struct DropMerge {
  DropGroup into;
  std::int64_t freed_bytes = 0;  // 0: the replicas gain nothing, or not yet
};

struct DropPlan {
  std::vector<DropMerge> merges;  // in order, also those that gain nothing
  std::vector<DropGroup> groups;  // those that gain, and what is left, by their first replica
  std::int64_t freed_bytes = 0;
};

// KunServe's drop plan (section 4.1, figure 6): merges the two smallest groups, again and again,
// until the KV that this frees meets the requirement, or nothing more can be freed. Few replicas
// in a group mean short pipelines, which lose least. A replica keeps at least one layer, so a group
// has at most `layers` replicas. If groups of unequal size would gain nothing as one, the smaller
// one stays as it is. Equal ones merge all the same, since a longer pipeline may gain, and part
// again in the plan's result if it does not. Takes O(N log N).
DropPlan plan_drop(std::span<const DropGroup> groups, std::int64_t required_bytes, int layers);

}  // namespace protean
