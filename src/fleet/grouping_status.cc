// What a fleet's groups tell policies and operators.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "control/plan_regroup.h"
#include "fleet/grouping.h"

namespace protean {

std::optional<std::vector<ReplicaId>> Grouping::parting(GroupBy by) const {
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const auto& running) {
    return !running->together() && !running->hurries() && running->group().by == by;
  });
  return found == running_.end() ? std::nullopt : std::optional((*found)->group().homes);
}

bool Grouping::waits_to_part(ReplicaId replica) const {
  const Regrouping* running = running_of(replica);
  return running != nullptr && !running->hurries() && running->waits_to_part() &&
         running->group().homes.front() == replica;
}

std::vector<ReplicaId> Grouping::waiting_to_part() const {
  std::vector<ReplicaId> waiting;
  for (const auto& running : running_) {
    const ReplicaId first = running->group().homes.front();
    if (waits_to_part(first)) {
      waiting.push_back(first);
    }
  }
  return waiting;
}

bool Grouping::settled(ReplicaId first) const {
  if (at_rest_) {
    return true;
  }
  const Replicas now = replicas_of(first);
  return !changes(first) && std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& wanted) {
    return wanted.replicas == now;
  });
}

bool Grouping::stays(ReplicaId first, std::size_t replicas) const {
  const bool wanted = std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& one) {
    return one.replicas.front() == first && one.replicas.size() == replicas;
  });
  const bool serves = is_group(first) && replicas_of(first).size() >= replicas;
  return wanted || serves || changes(first);
}

std::int64_t Grouping::kv_blocks_ahead(ReplicaId changing) const {
  const Regrouping& running = *running_of(changing);
  const GroupForms& group = running.group();
  GroupForms group_forms = group;
  if (group_forms.wide.group.empty()) {  // the replicas' forms are not at rest yet
    std::vector<Form> forms = forms_now(nested_forms(), group_forms.homes);
    group_forms.home = forms.front();
    const bool unequal = !of_equal_devices(forms);
    const int homes = static_cast<int>(forms.size());
    Result<Form> wide = unequal ? rebalanced_form(config_.spec, forms, config_.budget)
                                : divided_form(group_forms.home, homes, group_forms.by);
    if (wide.ok()) {
      group_forms.wide = *std::move(wide);
    }
    if (unequal) {
      group_forms.unequal = std::move(forms);
    }
  }
  return running.together() && !group_forms.wide.group.empty()
             ? most_kv_blocks(config_, group_forms.wide)
             : group_forms.blocks_apart();
}

std::optional<TimeNs> Grouping::next_deadline_ns() const {
  std::optional<TimeNs> next_ns;
  for (const auto& running : running_) {
    if (const auto ns = running->next_deadline_ns()) {
      next_ns = std::min(next_ns.value_or(*ns), *ns);
    }
  }
  return next_ns;
}

// Records which groups have more KV now than their replicas had, until they change again.
void Grouping::note_growth(TimeNs now_ns) {
  std::erase_if(growing_, [&](const auto& one) {
    const auto& [first, growing] = one;
    if (!is_group(first) || changes(first)) {
      return true;
    }
    if (stations_[index(first)].engine->observe().kv_blocks <= group(first).blocks_apart()) {
      return false;
    }
    const std::int64_t later = status_.records_total - growing.record;
    if (later <= std::ssize(status_.history)) {
      RegroupRecord& record = *(status_.history.end() - later);
      record.grown_ns = now_ns;
      record.steps_meanwhile += growing.steps;
    }
    told_at_rest_ = false;
    return true;
  });
}

std::shared_ptr<const GroupsStatus> Grouping::status_if_changed() {
  const bool tells = config_.devices != nullptr || !status_.failed.empty() || !told_.empty();
  if (!tells || (!busy() && told_at_rest_)) {
    return nullptr;
  }
  told_at_rest_ = !busy();
  std::string tell =
      fmt::format("{} {} {}", status_.failed.size(), status_.records_total, growing_.size());
  for (const auto& running : running_) {
    const RegroupRecord& record = running->record();
    tell += fmt::format(" {} {} {} {} {}", names_of(record.replicas), record.together, record.steps,
                        running->stage(), running->waits_for());
  }
  if (tell == told_) {
    return nullptr;
  }
  told_ = std::move(tell);
  auto status = std::make_shared<GroupsStatus>(status_);
  const NestedForms now = nested_forms();
  for (const Replicas& replicas : groups_in(now)) {
    const auto& nested = now[index(replicas.front())];
    GroupStatus& group = status->groups.emplace_back();
    group.replicas = replicas;
    group.by = nested.empty() ? std::nullopt : std::optional(nested.back().by);
    if (config_.devices != nullptr) {
      group.form = stations_[index(replicas.front())].engine->form().value_or(
          form_of(now, replicas.front()));
    }
  }
  for (const auto& running : running_) {
    status->running.push_back(
        {.record = running->record(),
         .stage = running->stage(),
         .waits_for = running->waits_for(),
         .joint_form = running->joint() ? std::optional(running->form()) : std::nullopt});
  }
  return status;
}

}  // namespace protean
