#include "fleet/dropping.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "control/drop_plan.h"

namespace protean {
namespace {

constexpr double kRestoreBelowShare = 0.5;  // of KV (KunServe section 4.4)

// The released code's numbers (kunserve_config).
constexpr double kFullShare = 0.95;
constexpr TimeNs kVoteEveryNs = kNsPerS / 10;
constexpr TimeNs kSampleEveryNs = kNsPerS / 2;
constexpr std::size_t kSamples = 30;

bool wants_drop(const DropCandidate& candidate) {
  const std::int64_t demand = candidate.kv_blocks_used + candidate.kv_blocks_awaited;
  return static_cast<double>(demand) >= kFullShare * static_cast<double>(candidate.kv_blocks) &&
         candidate.kv_blocks_awaited >= candidate.kv_blocks - candidate.kv_blocks_used;
}

struct Queued {
  std::int64_t blocks = 0;   // that queued requests need
  std::int64_t request = 1;  // blocks of one of them, on average
};

Queued queued_in(std::span<const DropCandidate> candidates) {
  Queued queued;
  std::int64_t waiting = 0;
  for (const DropCandidate& candidate : candidates) {
    queued.blocks += candidate.kv_blocks_awaited;
    waiting += candidate.waiting;
  }
  queued.request = waiting == 0 ? 1 : std::max<std::int64_t>(1, queued.blocks / waiting);
  return queued;
}

// Returns how much of so many free blocks counts.
std::int64_t free_for(const Queued& queued, std::int64_t blocks) {
  return blocks / queued.request * queued.request;
}

bool is_carried(int votes, int voters) {
  return votes > 0 && votes >= voters / 2;
}

// Joins each candidate without a drop with the next one of equal size.
GroupWish neighbours(std::span<const DropCandidate> candidates) {
  GroupWish wish{.groups = {}, .by = GroupBy::kLayers};
  const DropCandidate* left = nullptr;
  for (const DropCandidate& candidate : candidates) {
    if (candidate.by_layers) {
      continue;
    }
    if (left == nullptr || left->replicas.size() != candidate.replicas.size()) {
      left = &candidate;
      continue;
    }
    std::vector<ReplicaId>& both = wish.groups.emplace_back(left->replicas);
    both.insert(both.end(), candidate.replicas.begin(), candidate.replicas.end());
    std::sort(both.begin(), both.end());
    left = nullptr;
  }
  return wish;
}

}  // namespace

std::string_view to_string(DropPolicy policy) {
  switch (policy) {
    case DropPolicy::kOff:
      return "off";
    case DropPolicy::kPaper:
      return "paper";
    case DropPolicy::kReleased:
      return "released";
    case DropPolicy::kJoint:
      return "joint";
  }
  return "?";
}

Result<DropPolicy> parse_drop(std::string_view name) {
  for (const DropPolicy policy :
       {DropPolicy::kOff, DropPolicy::kPaper, DropPolicy::kReleased, DropPolicy::kJoint}) {
    if (to_string(policy) == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument, "--drop {}: use off, paper, released or joint",
                    name);
}

std::int64_t blocks_lacking(std::span<const DropCandidate> candidates) {
  const Queued queued = queued_in(candidates);
  std::int64_t lacking = queued.blocks;
  for (const DropCandidate& candidate : candidates) {
    lacking -= free_for(queued, candidate.kv_blocks - candidate.kv_blocks_used);
  }
  return lacking;
}

std::optional<GroupWish> choose_drop(std::span<const DropCandidate> candidates,
                                     std::span<const DropHolding> holdings,
                                     std::int64_t block_bytes) {
  struct Kind {
    std::vector<DropGroup> groups;  // each stage has the index of its candidate
    int layers = 0;
    std::size_t fewest_replicas = 0;  // of a candidate
  };
  std::map<int, Kind> by_kind;
  for (const DropHolding& holding : holdings) {
    const std::size_t replicas = candidates[holding.candidate].replicas.size();
    Kind& kind = by_kind[holding.kind];
    kind.layers = holding.layers;
    kind.fewest_replicas =
        kind.groups.empty() ? replicas : std::min(kind.fewest_replicas, replicas);
    kind.groups.push_back({.replicas = std::vector<int>(static_cast<std::size_t>(holding.stages),
                                                        static_cast<int>(holding.candidate)),
                           .layer_bytes = holding.layer_bytes,
                           .memory_bytes = holding.memory_bytes,
                           .kv_bytes = candidates[holding.candidate].kv_blocks * block_bytes});
  }
  std::vector<const Kind*> kinds;
  for (const auto& [number, kind] : by_kind) {
    kinds.push_back(&kind);
  }
  std::ranges::stable_sort(kinds, {}, &Kind::fewest_replicas);
  std::int64_t required_bytes = blocks_lacking(candidates) * block_bytes;
  GroupWish wish{.groups = {}, .by = GroupBy::kLayers};
  for (const Kind* const kind : kinds) {
    const DropPlan plan = plan_drop(kind->groups, required_bytes, kind->layers);
    required_bytes -= plan.freed_bytes;
    for (const DropGroup& group : plan.groups) {
      const std::set<int> members(group.replicas.begin(), group.replicas.end());
      if (members.size() == 1) {
        continue;  // it stays as it is
      }
      std::vector<ReplicaId>& replicas = wish.groups.emplace_back();
      for (const int member : members) {
        const auto& some = candidates[static_cast<std::size_t>(member)].replicas;
        replicas.insert(replicas.end(), some.begin(), some.end());
      }
      std::sort(replicas.begin(), replicas.end());
    }
  }
  return wish.groups.empty() ? std::nullopt : std::optional(std::move(wish));
}

std::optional<GroupWish> choose_restore(std::span<const DropCandidate> candidates) {
  const Queued queued = queued_in(candidates);
  const std::int64_t lacking = blocks_lacking(candidates);
  for (const DropCandidate& candidate : candidates) {
    const std::int64_t demand = candidate.kv_blocks_used + candidate.kv_blocks_awaited;
    const std::int64_t lost =
        free_for(queued, candidate.kv_blocks - candidate.kv_blocks_used) -
        free_for(queued, candidate.whole_kv_blocks - candidate.kv_blocks_used);
    if (candidate.by_layers && candidate.settled &&
        candidate.largest_need <= candidate.home_kv_blocks && lacking + lost <= 0 &&
        static_cast<double>(demand) <
            kRestoreBelowShare * static_cast<double>(candidate.whole_kv_blocks)) {
      return GroupWish{.groups = candidate.homes};
    }
  }
  return std::nullopt;
}

std::optional<GroupWish> DropVote::vote(std::span<const DropCandidate> candidates, TimeNs now_ns) {
  sample(candidates, now_ns);
  if (now_ns < next_vote_ns_) {
    return std::nullopt;
  }
  next_vote_ns_ = now_ns + kVoteEveryNs;
  int may_drop = 0;
  int drop = 0;
  int may_restore = 0;
  int restore = 0;
  GroupWish apart;
  for (const DropCandidate& candidate : candidates) {
    if (candidate.by_layers) {
      ++may_restore;
      restore += wants_restore(candidate) ? 1 : 0;
      apart.groups.insert(apart.groups.end(), candidate.homes.begin(), candidate.homes.end());
    } else {
      ++may_drop;
      drop += wants_drop(candidate) ? 1 : 0;
    }
  }
  if (is_carried(drop, may_drop)) {
    GroupWish together = neighbours(candidates);
    if (!together.groups.empty()) {
      return together;
    }
  }
  return is_carried(restore, may_restore) ? std::optional(std::move(apart)) : std::nullopt;
}

// Takes a sample of each group's demand if it is time, and forgets groups that have ended.
void DropVote::sample(std::span<const DropCandidate> candidates, TimeNs now_ns) {
  std::erase_if(groups_, [&](const Group& group) {
    return std::none_of(candidates.begin(), candidates.end(), [&](const DropCandidate& candidate) {
      return candidate.by_layers && candidate.replicas == group.replicas;
    });
  });
  if (now_ns < next_sample_ns_) {
    return;
  }
  next_sample_ns_ = now_ns + kSampleEveryNs;
  for (const DropCandidate& candidate : candidates) {
    if (!candidate.by_layers) {
      continue;
    }
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [&](const Group& one) { return one.replicas == candidate.replicas; });
    if (group == groups_.end()) {
      group = groups_.insert(group, {.replicas = candidate.replicas, .demand = {}});
    }
    group->demand.push_back(candidate.kv_blocks_used + candidate.kv_blocks_awaited);
    if (group->demand.size() > kSamples) {
      group->demand.pop_front();
    }
  }
}

bool DropVote::wants_restore(const DropCandidate& candidate) const {
  const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& one) {
    return one.replicas == candidate.replicas;
  });
  return candidate.kv_blocks_awaited == 0 && group != groups_.end() &&
         group->demand.size() == kSamples && group->demand.back() < group->demand.front() &&
         static_cast<double>(candidate.kv_blocks_used) <=
             kRestoreBelowShare * static_cast<double>(candidate.whole_kv_blocks);
}

std::optional<TimeNs> DropVote::next_ns() const {
  const bool may_change = std::any_of(groups_.begin(), groups_.end(), [](const Group& group) {
    return group.demand.size() < kSamples ||
           std::any_of(group.demand.begin(), group.demand.end(),
                       [&](std::int64_t blocks) { return blocks != group.demand.back(); });
  });
  return may_change ? std::optional(std::max(next_vote_ns_, next_sample_ns_)) : std::nullopt;
}

}  // namespace protean
