#include "control/drop_plan.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

// A group that there is or that a merge makes.
struct Node {
  DropGroup group;
  std::int64_t freed_bytes = 0;  // by the best of its merges
  bool kept = true;              // it frees more than the two that it is made of
  std::size_t left = 0;          // nodes that it is made of, unless it is a given one
  std::size_t right = 0;
  bool merged = false;  // another node is made of it
};

// Returns the KV for which the longest stage of a pipeline has room.
std::int64_t most_kv_bytes(const DropGroup& group, int layers) {
  const std::int64_t longest = ceil_div<std::int64_t>(layers, std::ssize(group.replicas));
  return group.memory_bytes * layers / longest - group.layer_bytes;
}

// The merged group keeps the larger copy, which has the higher precision.
DropGroup merged(const DropGroup& a, const DropGroup& b) {
  DropGroup both{.replicas = a.replicas,
                 .layer_bytes = std::max(a.layer_bytes, b.layer_bytes),
                 .memory_bytes = std::min(a.memory_bytes, b.memory_bytes),
                 .kv_bytes = a.kv_bytes + b.kv_bytes};
  both.replicas.insert(both.replicas.end(), b.replicas.begin(), b.replicas.end());
  return both;
}

// The groups that there are, and those that merges make of them.
class Merges {
 public:
  Merges(std::span<const DropGroup> groups, int layers) : layers_(layers) {
    nodes_.reserve(2 * groups.size());
    for (const DropGroup& group : groups) {
      check(!group.replicas.empty() && std::ssize(group.replicas) <= layers,
            "a group has replicas, each with a layer");
      add({.group = group});
    }
  }

  // Merges the two smallest groups that may become one; nothing if there are none.
  std::optional<DropMerge> next() {
    while (queue_.size() > 1) {
      const std::size_t a = pop();
      const std::size_t b = pop();
      const std::size_t size_a = size(a);
      const std::size_t size_b = size(b);
      if (std::cmp_greater(size_a + size_b, layers_)) {
        return std::nullopt;  // all others are at least as large
      }
      Node node = merge(a, b);
      if (!node.kept && size_a != size_b) {
        queue_.push(place_of(b));  // b may become one with another
        continue;
      }
      const std::int64_t freed = node.freed_bytes - nodes_[a].freed_bytes - nodes_[b].freed_bytes;
      nodes_[a].merged = nodes_[b].merged = true;
      add(std::move(node));
      return DropMerge{nodes_.back().group, freed};
    }
    return std::nullopt;
  }

  // Returns the groups that free most together.
  std::vector<DropGroup> groups() const {
    std::vector<DropGroup> groups;
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].merged) {
        open.push_back(i);
      }
    }
    while (!open.empty()) {
      const Node& node = nodes_[open.back()];
      open.pop_back();
      if (node.kept) {
        groups.push_back(node.group);
      } else {
        open.insert(open.end(), {node.left, node.right});
      }
    }
    std::ranges::sort(groups, {}, [](const DropGroup& group) { return group.replicas.front(); });
    return groups;
  }

 private:
  // The smallest group first; among equals, the one whose first replica has the lowest id.
  using Place = std::tuple<std::size_t, int, std::size_t>;  // the last is the node

  std::size_t size(std::size_t node) const { return nodes_[node].group.replicas.size(); }
  Place place_of(std::size_t node) const {
    return {size(node), nodes_[node].group.replicas.front(), node};
  }
  void add(Node node) {
    nodes_.push_back(std::move(node));
    queue_.push(place_of(nodes_.size() - 1));
  }
  std::size_t pop() {
    const std::size_t node = std::get<2>(queue_.top());
    queue_.pop();
    return node;
  }
  Node merge(std::size_t left, std::size_t right) const {
    const Node& a = nodes_[left];
    const Node& b = nodes_[right];
    Node node{.group = merged(a.group, b.group), .left = left, .right = right};
    const std::int64_t whole = most_kv_bytes(node.group, layers_) - node.group.kv_bytes;
    const std::int64_t parts = a.freed_bytes + b.freed_bytes;
    node.freed_bytes = std::max(whole, parts);
    node.kept = whole > parts;
    return node;
  }

  const int layers_;
  std::vector<Node> nodes_;
  std::priority_queue<Place, std::vector<Place>, std::greater<>> queue_;
};

}  // namespace

DropPlan plan_drop(std::span<const DropGroup> groups, std::int64_t required_bytes, int layers) {
  Merges merges(groups, layers);
  DropPlan plan;
  while (plan.freed_bytes < required_bytes) {
    std::optional<DropMerge> merge = merges.next();
    if (!merge) {
      break;
    }
    plan.freed_bytes += merge->freed_bytes;
    plan.merges.push_back(*std::move(merge));
  }
  plan.groups = merges.groups();
  return plan;
}

}  // namespace protean
