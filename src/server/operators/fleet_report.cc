#include "server/operators/fleet_report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <string>
#include <utility>

#include "server/operators/form_json.h"

namespace protean {
namespace {

namespace json = boost::json;

bool whole_or_empty(const ShardRun& run, int shards) {
  return run.empty() || run.count == shards;
}

// True if the device holds each component either whole or not at all.
bool undivided(const Holding& holding, int shards) {
  return whole_or_empty(holding.embeddings, shards) &&
         std::all_of(holding.layers.begin(), holding.layers.end(), [&](const auto& layer) {
           return whole_or_empty(layer.attention, shards) && whole_or_empty(layer.mlp, shards);
         });
}

// Shows a device's runs of shards as their first one and their count: of the embeddings, and of
// attention and MLP of each layer.
json::object shown_shards(const Holding& holding, int shards) {
  json::array layers;
  for (const Holding::Layer& layer : holding.layers) {
    layers.push_back(json::array{layer.attention.first, layer.attention.count, layer.mlp.first,
                                 layer.mlp.count});
  }
  return {{"of", shards},
          {"embeddings", json::array{holding.embeddings.first, holding.embeddings.count}},
          {"layers", std::move(layers)}};
}

json::array shown_numbers(const std::vector<ReplicaId>& replicas) {
  json::array shown;
  for (const ReplicaId replica : replicas) {
    shown.push_back(replica.value);
  }
  return shown;
}

}  // namespace

FleetReport::FleetReport(int replicas, const FormStatus& start)
    : devices_each_(start.form.group.size()),
      seen_(static_cast<std::size_t>(replicas), {.kv_blocks = start.form.kv.blocks}),
      forms_(seen_.size(), std::make_shared<const FormStatus>(start)),
      serving_(serving_now()) {}

void FleetReport::become(const FormStatus& start, bool loaded) {
  devices_each_ = start.form.group.size();
  if (!loaded) {
    form(ReplicaId{0}, std::make_shared<const FormStatus>(start));
  }
}

// Returns all replicas of a change of groups under way.
std::vector<ReplicaId> FleetReport::replicas_of(const RunningRegroup& change) const {
  std::vector<ReplicaId> changing;
  const std::vector<ReplicaId>& homes = change.record.replicas;
  for (const GroupStatus& group : groups_->groups) {
    if (std::find(homes.begin(), homes.end(), group.replicas.front()) != homes.end()) {
      changing.insert(changing.end(), group.replicas.begin(), group.replicas.end());
    }
  }
  return changing;
}

GroupsStatus FleetReport::groups_now() const {
  GroupsStatus now = *groups_;
  for (GroupStatus& group : now.groups) {
    const Form& reported = form(group.replicas.front()).form;
    if (group.form && reported.group.size() == group.form->group.size()) {
      group.form = reported;
    }
    group.use = seen(group.replicas.front()).devices;
  }
  return now;
}

std::vector<FleetReport::Holders> FleetReport::holders() const {
  std::vector<Holders> holders;
  if (groups_ == nullptr) {
    for (int replica = 0; replica < replicas(); ++replica) {
      holders.push_back({{ReplicaId{replica}}, form(ReplicaId{replica}).form});
    }
    return holders;
  }
  const auto holds = [&](const Form& form, const std::vector<ReplicaId>& replicas) {
    return form.group.size() == devices_each_ * replicas.size();
  };
  std::vector<ReplicaId> together;
  for (const RunningRegroup& change : groups_->running) {
    const std::vector<ReplicaId> replicas = replicas_of(change);
    const Form& reported = form(replicas.front()).form;
    if (change.joint_form || (!change.record.together && holds(reported, replicas))) {
      holders.push_back({replicas, change.joint_form.value_or(reported)});
      together.insert(together.end(), replicas.begin(), replicas.end());
    }
  }
  for (const GroupStatus& group : groups_->groups) {
    const ReplicaId first = group.replicas.front();
    if (std::find(together.begin(), together.end(), first) != together.end()) {
      continue;
    }
    // The engine of a group reports its form, but not at once; and once homes have engines of their
    // own, each reports its form, which may be before the end of the parting is told.
    const Form& reported = form(first).form;
    if (holds(reported, group.replicas)) {
      holders.push_back({group.replicas, reported});
    } else if (group.form) {
      holders.push_back({group.replicas, *group.form});
    } else {
      for (const ReplicaId replica : group.replicas) {
        holders.push_back({{replica}, form(replica).form});
      }
    }
  }
  return holders;
}

void FleetReport::groups(std::shared_ptr<const GroupsStatus> status) {
  groups_ = std::move(status);
  serving_ = serving_now();
}

Observation FleetReport::seen(ReplicaId replica) const {
  Observation seen = seen_[index(replica)];
  if (serving_[index(replica)] != replica) {
    seen.running = 0;
    seen.waiting = 0;
    seen.kv_blocks = 0;
    seen.kv_blocks_used = 0;
    seen.kv_blocks_awaited = 0;
    seen.step_tokens = 0;
    seen.expected_wait_ns = 0;
    seen.devices = {};
  }
  return seen;
}

std::vector<ReplicaId> FleetReport::serving_now() const {
  std::vector<ReplicaId> serving;
  for (int replica = 0; replica < replicas(); ++replica) {
    serving.push_back(ReplicaId{replica});
  }
  if (groups_ == nullptr) {
    return serving;
  }
  const auto serve_by = [&](ReplicaId first, const std::vector<ReplicaId>& replicas) {
    for (const ReplicaId replica : replicas) {
      serving[index(replica)] = first;
    }
  };
  for (const GroupStatus& group : groups_->groups) {
    serve_by(group.replicas.front(), group.replicas);
  }
  // A group that parts serves as one until its homes have engines of their own.
  for (const RunningRegroup& change : groups_->running) {
    if (!change.joint_form && !change.record.together) {
      const std::vector<ReplicaId> together = replicas_of(change);
      serve_by(together.front(), together);
    }
  }
  return serving;
}

Observation FleetReport::sum() const {
  std::vector<Observation> seen;
  for (int replica = 0; replica < replicas(); ++replica) {
    if (serving_[index(ReplicaId{replica})] == ReplicaId{replica}) {
      seen.push_back(seen_[index(ReplicaId{replica})]);
    }
  }
  return sum_of(seen);
}

json::object shown_replicas(const FleetReport& fleet) {
  const std::vector<ReplicaId>& serving = fleet.serving();
  json::object shown;
  for (int number = 0; number < fleet.replicas(); ++number) {
    const ReplicaId replica{number};
    const ReplicaId by = serving[static_cast<std::size_t>(number)];
    shown[std::to_string(number)] =
        by == replica ? shown_status(fleet.form(replica)) : json::object{{"serves_in", by.value}};
  }
  return shown;
}

json::object shown_devices(const FleetReport& fleet, const PagesByDevice& pages) {
  json::object shown;
  for (const auto& [replicas, form] : fleet.holders()) {
    json::array each = shown_devices(pages(form));
    const std::size_t devices_each = form.group.size() / replicas.size();
    for (std::size_t i = 0; i < each.size(); ++i) {
      json::object device = std::move(each[i].get_object());
      const ReplicaId replica = replicas[i / devices_each];
      const std::size_t number =
          static_cast<std::size_t>(replica.value) * devices_each + i % devices_each;
      device["device"] = number;
      device["replica"] = replica.value;
      device["holders"] = shown_numbers(replicas);
      if (!undivided(form.group[i], form.shards)) {
        device["shards"] = shown_shards(form.group[i], form.shards);
      }
      shown[std::to_string(number)] = std::move(device);
    }
  }
  return shown;
}

}  // namespace protean
