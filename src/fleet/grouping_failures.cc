// How groups lose members whose devices have failed (KunServe section 4.4), and what is wanted
// after a change that failed.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fleet/grouping.h"

namespace protean {

std::vector<ReplicaId> Grouping::devices_of(ReplicaId engine) const {
  const Regrouping* running = running_of(engine);
  return running != nullptr && running->joined() ? replicas_of(*running) : replicas_of(engine);
}

std::vector<ReplicaId> Grouping::changing(ReplicaId replica) const {
  return replicas_of(*running_of(replica));
}

std::vector<ReplicaId> Grouping::engines_of(ReplicaId replica) const {
  Replicas engines;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId engine{static_cast<std::int32_t>(i)};
    const Replicas devices = stations_[i].parked ? Replicas() : devices_of(engine);
    if (std::find(devices.begin(), devices.end(), replica) != devices.end()) {
      engines.push_back(engine);
    }
  }
  return engines;
}

bool Grouping::broken(ReplicaId engine) const {
  if (status_.failed.empty()) {
    return false;
  }
  const Replicas devices = devices_of(engine);
  return std::any_of(devices.begin(), devices.end(), [this](ReplicaId replica) {
    return !stations_[index(replica)].failure.empty();
  });
}

bool Grouping::engine_lives(ReplicaId replica) const {
  const Station& station = stations_[index(replica)];
  return !station.parked && (station.failure.empty() || is_group(replica) || changes(replica));
}

void Grouping::fail(ReplicaFailure failure) {
  const ReplicaId replica = failure.replica;
  const std::string reason = fmt::format("replica {} {}", replica.value, failure.why);
  status_.failed.push_back(std::move(failure));
  told_at_rest_ = false;
  std::vector<Wanted> wanted;
  for (const Wanted& before : wanted_) {
    const Replicas& group = before.replicas;
    if (std::find(group.begin(), group.end(), replica) == group.end()) {
      wanted.push_back(before);
      continue;
    }
    for (const ReplicaId one : group) {
      wanted.push_back({{one}, std::nullopt, reason, before.insists});
    }
  }
  wanted_ = std::move(wanted);
  at_rest_ = false;
  for (const auto& running : running_) {
    const Replicas concerned = replicas_of(*running);
    if (std::find(concerned.begin(), concerned.end(), replica) != concerned.end()) {
      running->break_up(reason);
    }
  }
}

ReplicaFailure Grouping::mend(ReplicaId replica) {
  const auto found = std::ranges::find(status_.failed, replica,
                                       [](const auto& failure) { return failure.replica; });
  check(found != status_.failed.end(), "a replica that is mended was out of service");
  ReplicaFailure failure = std::move(*found);
  status_.failed.erase(found);
  told_at_rest_ = false;
  at_rest_ = false;
  return failure;
}

// Makes the present groups of these replicas the wanted ones; a group that is forming counts as
// formed. So do the groups of all replicas that were wanted in one group with them.
void Grouping::keep_groups(std::set<ReplicaId> kept) {
  NestedForms ahead = nested_forms();
  for (const auto& running : running_) {
    if (running->together()) {
      ahead[index(running->group().homes.front())].push_back(running->group());
    }
  }
  std::vector<Replicas> groups = groups_in(ahead);
  const auto joins = [&kept](const Replicas& replicas) {
    const bool concerned = std::any_of(replicas.begin(), replicas.end(),
                                       [&](ReplicaId replica) { return kept.contains(replica); });
    if (concerned) {
      kept.insert(replicas.begin(), replicas.end());
    }
    return concerned;
  };
  for (std::size_t before = 0; before != kept.size();) {
    before = kept.size();
    std::erase_if(wanted_, [&](const Wanted& wanted) { return joins(wanted.replicas); });
    std::for_each(groups.begin(), groups.end(), joins);
  }
  for (Replicas& replicas : groups) {
    if (kept.contains(replicas.front())) {
      const auto& nested = ahead[index(replicas.front())];
      const auto by = nested.empty() ? std::nullopt : std::optional(nested.back().by);
      wanted_.push_back({std::move(replicas), by, {}, false});
    }
  }
}

}  // namespace protean
