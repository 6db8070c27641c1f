#include "control/drop_plan.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

// The smallest group first; among equals, the one whose first replica has the lowest id.
struct Larger {
  bool operator()(const DropGroup& a, const DropGroup& b) const {
    return std::pair(a.replicas.size(), a.replicas.front()) >
           std::pair(b.replicas.size(), b.replicas.front());
  }
};
using Queue = std::priority_queue<DropGroup, std::vector<DropGroup>, Larger>;

DropGroup pop(Queue& queue) {
  DropGroup smallest = queue.top();
  queue.pop();
  return smallest;
}

std::int64_t copies_of_embeddings(std::size_t stages) {
  return stages > 1 ? 2 : 1;
}

// The merged group keeps the larger copy, which has the higher precision.
DropMerge merge(DropGroup a, const DropGroup& b) {
  const std::int64_t copies =
      copies_of_embeddings(a.replicas.size()) + copies_of_embeddings(b.replicas.size());
  a.replicas.insert(a.replicas.end(), b.replicas.begin(), b.replicas.end());
  const std::int64_t freed =
      std::min(a.layer_bytes, b.layer_bytes) + (copies - copies_of_embeddings(a.replicas.size())) *
                                                   std::min(a.embedding_bytes, b.embedding_bytes);
  a.layer_bytes = std::max(a.layer_bytes, b.layer_bytes);
  a.embedding_bytes = std::max(a.embedding_bytes, b.embedding_bytes);
  return {std::move(a), freed};
}

}  // namespace

DropPlan plan_drop(std::span<const DropGroup> groups, std::int64_t required_bytes, int layers) {
  for (const DropGroup& group : groups) {
    check(!group.replicas.empty() && std::ssize(group.replicas) <= layers,
          "a group has replicas, each with a layer");
  }
  Queue queue(Larger(), std::vector<DropGroup>(groups.begin(), groups.end()));
  DropPlan plan;
  while (plan.freed_bytes < required_bytes && queue.size() > 1) {
    DropGroup first = pop(queue);
    const DropGroup second = pop(queue);
    if (std::ssize(first.replicas) + std::ssize(second.replicas) > layers) {
      queue.push(std::move(first));  // all others are at least as large
      queue.push(second);
      break;
    }
    plan.merges.push_back(merge(std::move(first), second));
    plan.freed_bytes += plan.merges.back().freed_bytes;
    queue.push(plan.merges.back().into);
  }
  while (!queue.empty()) {
    plan.groups.push_back(pop(queue));
  }
  std::sort(plan.groups.begin(), plan.groups.end(), [](const DropGroup& a, const DropGroup& b) {
    return a.replicas.front() < b.replicas.front();
  });
  return plan;
}

}  // namespace protean
