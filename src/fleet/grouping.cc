#include "fleet/grouping.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/check.h"
#include "control/plan_regroup.h"
#include "fleet/refusal.h"

namespace protean {
namespace {

constexpr std::size_t kHistory = 256;

bool overlap(const std::vector<ReplicaId>& a, const std::vector<ReplicaId>& b) {
  return std::any_of(a.begin(), a.end(), [&](ReplicaId replica) {
    return std::find(b.begin(), b.end(), replica) != b.end();
  });
}

// Both are ascending.
bool within(const std::vector<ReplicaId>& a, const std::vector<ReplicaId>& b) {
  return std::includes(b.begin(), b.end(), a.begin(), a.end());
}

}  // namespace

Grouping::Grouping(GroupConfig config, std::vector<Station>& stations, TokenSink& sink)
    : config_(std::move(config)), stations_(stations), sink_(sink), groups_(stations.size()) {
  std::set<ReplicaId> all;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    all.insert(ReplicaId{static_cast<std::int32_t>(i)});
  }
  keep_groups(all);
}

// Returns the change that concerns a home; null if there is none.
Regrouping* Grouping::running_of(ReplicaId home) const {
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [home](const auto& one) { return one->concerns(home); });
  return found == running_.end() ? nullptr : found->get();
}

template <class Nested>
std::vector<ReplicaId> Grouping::replicas_in(const std::vector<std::vector<Nested>>& groups,
                                             ReplicaId first, std::size_t depth) {
  if (depth == 0) {
    return {first};
  }
  Replicas all;
  for (const ReplicaId home : groups[index(first)][depth - 1].homes) {
    const Replicas some =
        replicas_in(groups, home, home == first ? depth - 1 : groups[index(home)].size());
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<ReplicaId> Grouping::replicas_of(ReplicaId replica) const {
  return replicas_in(groups_, replica, groups_[index(replica)].size());
}

std::vector<std::vector<ReplicaId>> Grouping::homes_of(ReplicaId group) const {
  const NestedForms now = nested_forms();
  const auto& nested = now[index(group)];
  std::vector<Replicas> homes;
  for (const ReplicaId home : nested.back().homes) {
    homes.push_back(
        replicas_in(now, home, home == group ? nested.size() - 1 : now[index(home)].size()));
  }
  return homes;
}

// Returns the replicas of each group, a replica alone too, in the order of their first ones.
std::vector<std::vector<ReplicaId>> Grouping::groups_in(const NestedForms& ahead) const {
  std::vector<Replicas> groups;
  std::set<ReplicaId> seen;
  for (std::size_t first = 0; first < ahead.size(); ++first) {
    const ReplicaId id{static_cast<std::int32_t>(first)};
    if (!seen.contains(id)) {
      groups.push_back(replicas_in(ahead, id, ahead[first].size()));
      seen.insert(groups.back().begin(), groups.back().end());
    }
  }
  return groups;
}

// Returns the next change on the way to the wanted groups, of replicas that no other change
// concerns; nothing if there is none.
std::optional<Grouping::Change> Grouping::next_change(const NestedForms& ahead,
                                                      const Replicas& changing) const {
  const std::vector<Replicas> groups = groups_in(ahead);
  for (const Wanted& wanted : wanted_) {
    if (overlap(wanted.replicas, changing)) {
      continue;
    }
    const auto apart = [&](const Replicas& group) {
      const GroupForms& group_forms = ahead[index(group.front())].back();
      return Change{
          .homes = group_forms.homes, .by = group_forms.by, .together = false, .wanted = &wanted};
    };
    std::vector<const Replicas*> inside;
    std::size_t smallest = wanted.replicas.size();
    for (const Replicas& group : groups) {
      if (!overlap(group, wanted.replicas)) {
        continue;
      }
      if (!within(group, wanted.replicas)) {
        return apart(group);
      }
      inside.push_back(&group);
      smallest = std::min(smallest, group.size());
    }
    if (inside.size() == 1) {
      const auto& nested = ahead[index(inside.front()->front())];
      if (!nested.empty() && wanted.by && nested.back().by != *wanted.by) {
        return apart(*inside.front());
      }
      continue;
    }
    Change change{.homes = {}, .by = wanted.by.value_or(GroupBy::kShards), .wanted = &wanted};
    const bool alike = std::all_of(inside.begin(), inside.end(), [&](const Replicas* group) {
      return made_alike(ahead, inside.front()->front(), group->front());
    });
    for (const Replicas* group : inside) {
      change.homes.push_back(group->front());
    }
    if (const auto group_forms = evens_out(ahead, change); group_forms && group_forms->ok()) {
      return change;
    }
    for (const Replicas* group : inside) {
      const auto& nested = ahead[index(group->front())];
      const bool by_layers = !nested.empty() && nested.back().by == GroupBy::kLayers;
      // Devices that have divided layers join only those that have divided them alike, to divide
      // their own layers further.
      if (group->size() > smallest || (by_layers && !(alike && change.by == GroupBy::kLayers))) {
        return apart(*group);
      }
    }
    if (smallest > 1 && !keeps_form(ahead, change)) {
      return apart(*inside.front());
    }
    return change;
  }
  return std::nullopt;
}

// Returns what a change does, and changes the forms ahead accordingly.
Result<Regroup> Grouping::look_ahead(const Change& change, NestedForms& ahead) const {
  auto& nested = ahead[index(change.homes.front())];
  const int homes = static_cast<int>(change.homes.size());
  if (!change.together) {
    const GroupForms group_forms = std::move(nested.back());
    nested.pop_back();
    Result<Morph> morph =
        plan_regroup(config_.spec, group_forms.wide, group_forms.joined(), config_.budget);
    if (!morph.ok()) {
      return morph.error();
    }
    return Regroup{change.homes, change.by, false, *std::move(morph)};
  }
  if (auto evened = evens_out(ahead, change)) {
    return evened->ok() ? look_ahead_evened(change, **std::move(evened), ahead)
                        : Result<Regroup>(refused_for(evened->error()));
  }
  GroupForms group_forms{.homes = change.homes,
                         .by = change.by,
                         .home = joined_form(form_of(ahead, change.homes.front()), 1),
                         .wide = {}};
  const Result<std::int64_t> blocks =
      kv_blocks_to_regroup(config_.spec, group_forms.home, homes, change.by, config_.budget);
  if (!blocks.ok()) {
    return refused("{}", blocks.error().message);
  }
  if (*blocks < group_forms.home.kv.blocks) {
    const ReplicaId first = change.homes.front();
    if (Status may = check_morphs(*stations_[index(first)].engine, first, *blocks); !may.ok()) {
      return refused("{}", may.error().message);
    }
    group_forms.shrunk_from = std::exchange(group_forms.home.kv.blocks, *blocks);
  }
  group_forms.wide = divided_form(group_forms.home, homes, change.by).value();
  Result<Morph> morph = plan_regroup(config_.spec, joined_form(group_forms.home, homes),
                                     group_forms.wide, config_.budget);
  if (!morph.ok()) {
    return refused("{}", morph.error().message);
  }
  nested.push_back(std::move(group_forms));
  return Regroup{change.homes, change.by, true, *std::move(morph)};
}

Status Grouping::check_wish(const GroupWish& wish) const {
  if (config_.devices == nullptr && stations_.size() == 1) {
    return refused(
        "the model has one replica: serve it with --data-parallel-size 2, or more, to group them");
  }
  if (config_.devices == nullptr) {
    return refused("{}: use --tensor-parallel-size or --pipeline-parallel-size to divide the model",
                   config_.why_not);
  }
  std::set<ReplicaId> named;
  for (const Replicas& group : wish.groups) {
    if (group.empty()) {
      return refused("a group has no replicas: name some");
    }
    if (wish.by == GroupBy::kShards && !std::has_single_bit(group.size())) {
      return refused("a group by shards has {} replicas: name 1, 2, 4 or 8", group.size());
    }
    for (const ReplicaId replica : group) {
      if (replica.value < 0 || index(replica) >= stations_.size()) {
        return refused("there is no replica {}: name 0 to {}", replica.value, stations_.size() - 1);
      }
      const std::string& failure = stations_[index(replica)].failure;
      if (group.size() > 1 && !failure.empty()) {
        return for_now(refused("replica {} is out of service: it {}", replica.value, failure));
      }
      if (!named.insert(replica).second) {
        return refused("replica {} is named twice", replica.value);
      }
    }
  }
  if (named.empty()) {
    return refused("no replica is named");
  }
  return {};
}

// Returns how the group of exactly these replicas divides the model; it may be within another one.
std::optional<GroupBy> Grouping::divides_by(const Replicas& replicas) const {
  const std::vector<Group>& nested = groups_[index(replicas.front())];
  for (std::size_t depth = 1; depth <= nested.size(); ++depth) {
    if (replicas_in(groups_, replicas.front(), depth) == replicas) {
      return nested[depth - 1].by;
    }
  }
  return std::nullopt;
}

// Returns the groups that the wish asks for, and those it does not touch. Unless an operator asks,
// groups that there are within others stay as they are when these part.
std::vector<Grouping::Wanted> Grouping::wanted_after(const GroupWish& wish,
                                                     const std::string& reason,
                                                     bool insists) const {
  std::vector<Wanted> wanted;
  Replicas named;
  for (Replicas group : wish.groups) {
    std::sort(group.begin(), group.end());
    named.insert(named.end(), group.begin(), group.end());
    const GroupBy by = insists ? wish.by : divides_by(group).value_or(wish.by);
    wanted.push_back({std::move(group), by, reason, insists});
  }
  for (const Wanted& before : wanted_) {
    if (!overlap(before.replicas, named)) {
      wanted.push_back(before);
      continue;
    }
    for (const ReplicaId replica : before.replicas) {
      if (std::find(named.begin(), named.end(), replica) == named.end()) {
        wanted.push_back({{replica}, std::nullopt, reason, insists});
      }
    }
  }
  return wanted;
}

Result<std::vector<Regroup>> Grouping::want(const GroupWish& wish, const std::string& reason,
                                            bool insists, TimeNs now_ns) {
  if (Status valid = check_wish(wish); !valid.ok()) {
    return valid.error();
  }
  std::vector<Wanted> before = std::exchange(wanted_, wanted_after(wish, reason, insists));
  // What replicas have while they change says nothing of what they can have later.
  const auto give_up = [&](Error why) {
    wanted_ = std::move(before);
    if (why.code == ErrorCode::kInvalidArgument && !running_.empty()) {
      why.message += "; other groups are changing: ask again when they have";
      return for_now(std::move(why));
    }
    return why;
  };
  NestedForms ahead = nested_forms();
  std::vector<Regroup> changes;
  for (const auto& running : running_) {
    Result<Regroup> rest = rest_of(*running, ahead);
    if (!rest.ok()) {
      return give_up(rest.error());
    }
    changes.push_back(*std::move(rest));
  }
  while (const auto change = next_change(ahead, {})) {
    Result<Regroup> next = look_ahead(*change, ahead);
    if (next.ok() && next->together) {
      const Status may = change->wanted->insists
                             ? check_homes(change->homes.front(), ahead)
                             : check_shrink(ahead[index(change->homes.front())].back());
      if (!may.ok()) {
        next = refused_for(may.error());
      }
    }
    if (!next.ok()) {
      return give_up(next.error());
    }
    next->morph.reason = change->wanted->reason;
    changes.push_back(*std::move(next));
  }
  at_rest_ = false;
  for (const auto& running : running_) {
    const Replicas changing = replicas_of(*running);
    if (std::any_of(wish.groups.begin(), wish.groups.end(),
                    [&](const Replicas& group) { return overlap(group, changing); })) {
      running->insist(insists);
    }
    running->turn(wanted_together(*running), "turned back: " + reason);
  }
  advance(now_ns);
  return changes;
}

// Returns what a change under way still does, and changes the forms ahead accordingly.
Result<Regroup> Grouping::rest_of(const Regrouping& running, NestedForms& ahead) const {
  const Group& group = running.group();
  const bool together = wanted_together(running);
  if (group.wide.group.empty()) {
    return together ? look_ahead({group.homes, group.by, true}, ahead)
                    : Regroup{group.homes, group.by, false, {}};
  }
  Result<Morph> morph = plan_regroup(config_.spec, running.form(),
                                     together ? group.wide : group.joined(), config_.budget);
  if (!morph.ok()) {
    return morph.error();
  }
  if (together) {
    ahead[index(group.homes.front())].push_back(group);
  }
  return Regroup{group.homes, group.by, together, *std::move(morph)};
}

std::vector<ReplicaId> Grouping::replicas_of(const Regrouping& running) const {
  Replicas all;
  for (const ReplicaId home : running.group().homes) {
    const Replicas some = replicas_of(home);
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

// Returns true if the replicas of a change under way are wanted in one group.
bool Grouping::wanted_together(const Regrouping& running) const {
  const Replicas all = replicas_of(running);
  return std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& wanted) {
    const bool same_by =
        wanted.replicas.size() > all.size() || !wanted.by || *wanted.by == running.group().by;
    return within(all, wanted.replicas) && same_by;
  });
}

bool Grouping::on(const MorphReady& ready, TimeNs now_ns) {
  if (Regrouping::owns(ready.id)) {
    for (const auto& running : running_) {
      running->on(ready, now_ns);
    }
  }
  return Regrouping::owns(ready.id);
}

bool Grouping::on(const MorphDone& done, TimeNs now_ns) {
  if (Regrouping::owns(done.id)) {
    const bool known = std::any_of(running_.begin(), running_.end(),
                                   [&](const auto& one) { return one->on(done, now_ns); });
    check(known, "only what was asked for is done, once");
  }
  return Regrouping::owns(done.id);
}

void Grouping::step_done(ReplicaId replica, TimeNs now_ns) {
  for (const auto& running : running_) {
    running->step_done(replica, now_ns);
  }
  if (const auto growing = growing_.find(replica); growing != growing_.end()) {
    ++growing->second.steps;
  }
}

void Grouping::advance(TimeNs now_ns) {
  for (bool more = true; more;) {
    more = false;
    begin_all(now_ns);
    for (const auto& running : running_) {
      running->advance(now_ns);
      auto moved = running->take_moved();
      moved_.insert(moved_.end(), moved.begin(), moved.end());
      if (auto failure = running->take_failure()) {
        failures_.push_back({replicas_of(*running), *std::move(failure), running->stuck()});
      }
    }
    for (auto running = running_.begin(); running != running_.end();) {
      if ((*running)->ended()) {
        std::unique_ptr<Regrouping> ended = std::move(*running);
        running = running_.erase(running);
        finish(std::move(ended));
        more = true;
      } else {
        ++running;
      }
    }
  }
  note_growth(now_ns);
}

// Begins the changes of replicas that none concerns.
void Grouping::begin_all(TimeNs now_ns) {
  while (!at_rest_) {
    Replicas changing;
    for (const auto& running : running_) {
      const Replicas some = replicas_of(*running);
      changing.insert(changing.end(), some.begin(), some.end());
    }
    const auto change = next_change(nested_forms(), changing);
    if (!change) {
      at_rest_ = running_.empty();
      return;
    }
    begin(*change, now_ns);
  }
}

void Grouping::begin(const Change& change, TimeNs now_ns) {
  auto& nested = groups_[index(change.homes.front())];
  if (change.together) {
    std::vector<Form> forms;
    for (const ReplicaId home : change.homes) {
      forms.push_back(loaded_form(home));
    }
    running_.push_back(std::make_unique<Regrouping>(
        config_, stations_, sink_,
        Group{{.homes = change.homes, .by = change.by, .home = {}, .wide = {}}, nullptr},
        std::move(forms)));
  } else {
    running_.push_back(
        std::make_unique<Regrouping>(config_, stations_, sink_, std::move(nested.back())));
    nested.pop_back();
  }
  Regrouping& begun = *running_.back();
  begun.insist(change.wanted->insists);
  begun.begin(change.wanted->reason, generation_, now_ns);
  if (!change.together && broken(change.homes.front())) {
    begun.break_up(change.wanted->reason);
  }
}

// Records a change that has ended. After a failure, no other is tried with its replicas.
void Grouping::finish(std::unique_ptr<Regrouping> ended) {
  RegroupRecord record = ended->record();
  if (record.succeeded()) {
    ++(record.together ? status_.together_total : status_.apart_total);
  }
  status_.kv_bytes_total += record.kv_bytes;
  status_.weight_bytes_total += record.weight_bytes;
  const bool as_wanted = wanted_together(*ended) == record.together;
  const Replicas replicas = replicas_of(*ended);
  if (record.together) {
    groups_[index(record.replicas.front())].push_back(ended->take_group());
  } else if (record.begun_ns >= 0) {
    parted_.push_back(replicas);
  }
  if (!record.failure.empty()) {
    ++status_.failures_total;
    if (!as_wanted) {
      keep_groups({replicas.begin(), replicas.end()});
    }
  }
  if (record.together && record.succeeded()) {
    growing_[record.replicas.front()] = {.record = status_.records_total};
  }
  if (status_.history.size() == kHistory) {
    status_.history.erase(status_.history.begin());
  }
  status_.history.push_back(std::move(record));
  ++status_.records_total;
  told_at_rest_ = false;  // a change that fails at once begins and ends between two looks
}

}  // namespace protean
