#include "fleet/dropping.h"

#include <algorithm>
#include <bit>

#include "control/drop_plan.h"

namespace protean {
namespace {

constexpr double kRestoreBelowShare = 0.5;

std::int64_t blocks_lacking(std::span<const DropCandidate> candidates) {
  std::int64_t lacking = 0;
  for (const DropCandidate& candidate : candidates) {
    lacking += candidate.kv_blocks_awaited - (candidate.kv_blocks - candidate.kv_blocks_used);
  }
  return lacking;
}

// Returns true if the groups that become this one are of equal size.
bool equal_parts(const DropGroup& whole, std::span<const DropGroup> groups) {
  std::size_t size = 0;
  for (const DropGroup& group : groups) {
    const std::vector<int>& all = whole.replicas;
    if (std::find(all.begin(), all.end(), group.replicas.front()) != all.end()) {
      if (size != 0 && size != group.replicas.size()) {
        return false;
      }
      size = group.replicas.size();
    }
  }
  return true;
}

}  // namespace

std::string_view to_string(DropPolicy policy) {
  switch (policy) {
    case DropPolicy::kOff:
      return "off";
    case DropPolicy::kPaper:
      return "paper";
    case DropPolicy::kJoint:
      return "joint";
  }
  return "?";
}

Result<DropPolicy> parse_drop(std::string_view name) {
  for (const DropPolicy policy : {DropPolicy::kOff, DropPolicy::kPaper, DropPolicy::kJoint}) {
    if (to_string(policy) == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument, "--drop {}: use off, paper or joint", name);
}

std::optional<GroupWish> choose_drop(std::span<const DropCandidate> candidates,
                                     const DropCosts& costs) {
  const std::int64_t lacking = blocks_lacking(candidates);
  std::vector<DropGroup> groups;
  for (const DropCandidate& candidate : candidates) {
    if (candidate.by_layers) {
      continue;
    }
    DropGroup& group =
        groups.emplace_back(DropGroup{.replicas = {}, .copy_bytes = costs.copy_bytes});
    for (const ReplicaId replica : candidate.replicas) {
      group.replicas.push_back(replica.value);
    }
  }
  if (lacking <= 0 || groups.size() < 2) {
    return std::nullopt;
  }
  const std::int64_t all = (std::ssize(groups) - 1) * costs.copy_bytes;
  const Result<DropPlan> plan =
      plan_drop(groups, std::min(lacking * costs.block_bytes, all), costs.layers);
  if (!plan.ok()) {
    return std::nullopt;
  }
  GroupWish wish{.groups = {}, .by = GroupBy::kLayers};
  for (const DropGroup& group : plan->groups) {
    if (std::find(groups.begin(), groups.end(), group) != groups.end()) {
      continue;  // it stays as it is
    }
    if (!std::has_single_bit(group.replicas.size()) || !equal_parts(group, groups)) {
      return std::nullopt;
    }
    std::vector<ReplicaId>& replicas = wish.groups.emplace_back();
    for (const int replica : group.replicas) {
      replicas.push_back(ReplicaId{replica});
    }
    std::sort(replicas.begin(), replicas.end());
  }
  return wish.groups.empty() ? std::nullopt : std::optional(std::move(wish));
}

std::optional<GroupWish> choose_restore(std::span<const DropCandidate> candidates) {
  if (std::any_of(candidates.begin(), candidates.end(),
                  [](const DropCandidate& candidate) { return candidate.kv_blocks_awaited > 0; })) {
    return std::nullopt;
  }
  for (const DropCandidate& candidate : candidates) {
    if (candidate.by_layers &&
        static_cast<double>(candidate.kv_blocks_used) <
            kRestoreBelowShare * static_cast<double>(candidate.whole_kv_blocks)) {
      GroupWish wish;
      for (const ReplicaId replica : candidate.replicas) {
        wish.groups.push_back({replica});
      }
      return wish;
    }
  }
  return std::nullopt;
}

}  // namespace protean
