// The groups that there are, for looking ahead.

#include <algorithm>
#include <utility>

#include "control/plan_regroup.h"
#include "fleet/grouping.h"

namespace protean {

Grouping::NestedForms Grouping::nested_forms() const {
  NestedForms ahead;
  for (const std::vector<Group>& nested : groups_) {
    ahead.emplace_back(nested.begin(), nested.end());
  }
  return ahead;
}

bool Grouping::made_alike(const NestedForms& ahead, ReplicaId a, ReplicaId b) {
  const std::vector<GroupForms>& these = ahead[index(a)];
  const std::vector<GroupForms>& those = ahead[index(b)];
  return std::equal(
      these.begin(), these.end(), those.begin(), those.end(),
      [&](const GroupForms& x, const GroupForms& y) {
        return x.by == y.by && x.home == y.home && x.wide == y.wide && x.unequal == y.unequal &&
               std::equal(x.homes.begin() + 1, x.homes.end(), y.homes.begin() + 1, y.homes.end(),
                          [&](ReplicaId c, ReplicaId d) { return made_alike(ahead, c, d); });
      });
}

// Returns true if the homes can become one at the precisions and with the KV that they have. A
// group's KV cannot shrink below that of its replicas.
bool Grouping::keeps_form(const NestedForms& ahead, const Change& change) const {
  const Form home = joined_form(form_of(ahead, change.homes.front()), 1);
  if (!std::ranges::all_of(change.homes, [&](ReplicaId other) {
        return equally_precise(form_of(ahead, other), home);
      })) {
    return false;
  }
  const Result<std::int64_t> blocks = kv_blocks_to_regroup(
      config_.spec, home, static_cast<int>(change.homes.size()), change.by, config_.budget);
  return blocks.ok() && *blocks == home.kv.blocks;
}

// Returns the forms of homes with the KV that they have, or will have once it rests.
std::vector<Form> Grouping::forms_now(const NestedForms& ahead, const Replicas& homes) const {
  std::vector<Form> forms;
  for (const ReplicaId home : homes) {
    Form& form = forms.emplace_back(joined_form(form_of(ahead, home), 1));
    const Engine& engine = *stations_[index(home)].engine;
    const bool exists = ahead[index(home)].size() == groups_[index(home)].size();
    if (engine.form() && exists && running_of(home) == nullptr) {
      form.kv.blocks = engine.form_at_rest() ? engine.form()->kv.blocks : engine.kv_blocks_ahead();
    }
  }
  return forms;
}

// Returns the engine of a replica, or of a group that there is; null if it is to form.
const Engine* Grouping::engine_ahead(const NestedForms& ahead, ReplicaId home) const {
  const auto& groups = groups_[index(home)];
  const std::size_t depth = ahead[index(home)].size();
  return depth > groups.size()    ? nullptr
         : depth == groups.size() ? stations_[index(home)].engine.get()
                                  : groups[depth].first.get();
}

// Returns what pipelines of unequal length or memory, or replicas of unequal precisions, become, or
// why they cannot. Returns nothing if the homes are equal, and for groups that differ in nothing
// but their precisions: these part first.
std::optional<Result<GroupForms>> Grouping::evens_out(const NestedForms& ahead,
                                                      const Change& change) const {
  std::vector<Form> forms = forms_now(ahead, change.homes);
  const bool equally = std::ranges::all_of(
      forms, [&](const Form& form) { return equally_precise(form, forms.front()); });
  const bool groups = std::ranges::any_of(
      change.homes, [&](ReplicaId home) { return !ahead[index(home)].empty(); });
  if (of_equal_devices(forms) && (equally || groups)) {
    return std::nullopt;
  }
  std::vector<JoiningHome> homes;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const ReplicaId replica = change.homes[i];
    homes.push_back({replica, std::move(forms[i]), engine_ahead(ahead, replica)});
  }
  return group_forms_of(config_, homes, change.by,
                        change.wanted == nullptr || change.wanted->insists);
}

Regroup Grouping::look_ahead_evened(const Change& change, GroupForms group_forms,
                                    NestedForms& ahead) const {
  Morph morph =
      plan_regroup(config_.spec, group_forms.joined(), group_forms.wide, config_.budget).value();
  ahead[index(change.homes.front())].push_back(std::move(group_forms));
  return {change.homes, change.by, true, std::move(morph)};
}

bool Grouping::join_at_once(const Replicas& replicas) {
  std::vector<Wanted> before = std::exchange(
      wanted_, std::vector<Wanted>{Wanted{replicas, GroupBy::kLayers, std::string(), false}});
  const std::optional<Change> change = next_change(nested_forms(), {});
  wanted_ = std::move(before);
  return change && change->together;
}

// Refuses a policy a group for which KV shrinks, if that gains nothing or has to preempt a request.
Status Grouping::check_shrink(GroupForms group_forms) const {
  if (!group_forms.unequal.empty()) {  // it keeps its KV
    return {};
  }
  // KV of groups that become one may have grown since they were formed.
  const auto now = stations_[index(group_forms.homes.front())].engine->form();
  const bool is_home = now && now->group.size() == group_forms.home.group.size() &&
                       equally_precise(*now, group_forms.home);
  if (is_home && now->kv.blocks > group_forms.home.kv.blocks && group_forms.shrunk_from == 0) {
    const auto homes = static_cast<int>(group_forms.homes.size());
    group_forms.home.kv.blocks = now->kv.blocks;
    const Result<std::int64_t> blocks =
        kv_blocks_to_regroup(config_.spec, group_forms.home, homes, group_forms.by, config_.budget);
    if (!blocks.ok()) {
      return blocks.error();
    }
    if (*blocks < now->kv.blocks) {
      group_forms.shrunk_from = std::exchange(group_forms.home.kv.blocks, *blocks);
      group_forms.wide = divided_form(group_forms.home, homes, group_forms.by).value();
    }
  }
  if (group_forms.shrunk_from == 0) {
    return {};
  }
  return check_shrunk(config_, stations_, group_forms, false);
}

// Refuses an operator a group that would fail as soon as it begins: its homes can come to no equal
// forms, or a request needs more KV than they would keep. Homes that change before are not checked.
Status Grouping::check_homes(ReplicaId group, const NestedForms& ahead) const {
  const GroupForms& group_forms = ahead[index(group)].back();
  std::vector<JoiningHome> homes;
  for (const ReplicaId home : group_forms.homes) {
    const Engine& engine = *stations_[index(home)].engine;
    const std::size_t changes = home == group ? 1 : 0;
    if (ahead[index(home)].size() != groups_[index(home)].size() + changes ||
        running_of(home) != nullptr || !engine.form_at_rest()) {
      return {};
    }
    Form form = joined_form(engine.form().value_or(loaded_form(home)), 1);
    homes.push_back({home, std::move(form), &engine});
  }
  const Result<GroupForms> next = group_forms_of(config_, homes, group_forms.by, true);
  return next.ok() ? Status() : next.error();
}

// Returns the form that a replica or group becomes part of a group with, which may have more KV
// still. A group that there is has the precisions that it came to since it was formed.
Form Grouping::form_of(const NestedForms& ahead, ReplicaId replica) const {
  const auto& nested = ahead[index(replica)];
  const Regrouping* running = running_of(replica);
  const bool changes = running != nullptr;
  if (!nested.empty()) {
    Form form = nested.back().wide;
    const std::optional<Form> now = stations_[index(replica)].engine->form();
    if (now && !changes && nested.size() == groups_[index(replica)].size()) {
      form.layer_precision = now->layer_precision;
      form.embeddings = now->embeddings;
    }
    return form;
  }
  if (changes && !running->group().home.group.empty()) {
    const Replicas& homes = running->group().homes;
    const auto home = std::find(homes.begin(), homes.end(), replica) - homes.begin();
    return running->group().home_forms()[static_cast<std::size_t>(home)];
  }
  const auto& groups = groups_[index(replica)];  // a group may part before
  const Engine& engine = groups.empty() ? *stations_[index(replica)].engine : *groups.front().first;
  return engine.form().value_or(config_.form);
}

}  // namespace protean
