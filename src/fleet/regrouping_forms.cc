// The forms with which homes become one: at equal precisions, and with KV that fits on the way.

#include <algorithm>
#include <iterator>
#include <utility>

#include "control/plan_regroup.h"
#include "cost/memory.h"
#include "fleet/regrouping.h"

namespace protean {
namespace {

// Returns the form with the devices numbered, so that forms of different replicas compare.
Form numbered(const Form& form) {
  return joined_form(form, 1);
}

std::vector<Form> forms_of(const std::vector<JoiningHome>& homes) {
  std::vector<Form> forms;
  std::ranges::transform(homes, std::back_inserter(forms), &JoiningHome::form);
  return forms;
}

FormWish wish_for(const Form& form) {
  return {
      .layers = form.layer_precision, .embeddings = form.embeddings, .kv_blocks = form.kv.blocks};
}

Error different(const JoiningHome& a, const JoiningHome& b) {
  return make_error(ErrorCode::kUnavailable,
                    "replicas {} and {} have different forms, '{}' and '{}': ask for equal ones "
                    "first",
                    a.replica.value, b.replica.value, to_string(a.form), to_string(b.form));
}

// Returns the form with each component at the higher precision of both.
Form higher(Form form, const Form& other) {
  const auto raise = [&](int layer, Component component) {
    Precision& precision = precision_of(form, layer, component);
    precision = std::min(precision, precision_of(other, layer, component));
  };
  for (int layer = 0; layer < std::ssize(form.layer_precision); ++layer) {
    for (const Component half : kLayerHalves) {
      raise(layer, half);
    }
  }
  raise(0, Component::kEmbeddings);
  return form;
}

// Returns forms of the precisions that homes may have as one, the best first.
Result<std::vector<Form>> precisions_for(const ModelSpec& spec,
                                         const std::vector<JoiningHome>& homes) {
  const JoiningHome* pinned = nullptr;
  Form highest = homes.front().form;
  const Form* smallest = &homes.front().form;
  for (const JoiningHome& home : homes) {
    if (home.engine != nullptr && home.engine->pinned()) {
      if (pinned != nullptr && !equally_precise(pinned->form, home.form)) {
        return different(*pinned, home);
      }
      pinned = &home;
    }
    highest = higher(std::move(highest), home.form);
    if (weight_bytes(spec, home.form) < weight_bytes(spec, *smallest)) {
      smallest = &home.form;
    }
  }
  return pinned != nullptr ? std::vector{pinned->form} : std::vector{highest, *smallest};
}

// Returns the forms that homes have at these precisions. KV has what fits, or stays as it is.
Result<std::vector<Form>> forms_at(const Form& precisions, const std::vector<JoiningHome>& homes,
                                   bool kv_stays) {
  const auto there = std::ranges::find_if(
      homes, [&](const JoiningHome& home) { return equally_precise(home.form, precisions); });
  std::vector<Form> forms;
  for (const JoiningHome& home : homes) {
    if (equally_precise(home.form, precisions)) {
      forms.push_back(home.form);
      continue;
    }
    FormWish wish = wish_for(precisions);
    wish.kv_blocks = kv_stays ? std::optional(home.form.kv.blocks) : std::nullopt;
    const auto now = home.engine != nullptr ? home.engine->form() : std::nullopt;
    const bool is_its_own = now && now->group.size() == home.form.group.size();  // not its group's
    const Result<Form> form =
        is_its_own ? home.engine->form_with(wish)
                   : Result<Form>(different(there != homes.end() ? *there : homes.front(), home));
    if (!form.ok()) {
      return form.error();
    }
    forms.push_back(numbered(*form));
  }
  return forms;
}

// Returns what homes of equal precisions become.
Result<GroupForms> group_forms_at(const GroupConfig& config, const std::vector<JoiningHome>& homes,
                                  GroupBy by, std::vector<Form> forms) {
  GroupForms group_forms{.homes = {}, .by = by, .home = {}, .wide = {}};
  std::ranges::transform(homes, std::back_inserter(group_forms.homes), &JoiningHome::replica);
  group_forms.home =
      *std::ranges::min_element(forms, {}, [](const Form& form) { return form.kv.blocks; });
  if (!of_equal_devices(forms)) {
    if (by != GroupBy::kLayers) {
      return make_error(ErrorCode::kInvalidArgument,
                        "replicas whose devices have unequal memory divide no layers by shards: "
                        "group them by layers");
    }
    Result<Form> wide = rebalanced_form_in(config.spec, forms, config.budget);
    if (!wide.ok()) {
      return wide.error();
    }
    group_forms.wide = *std::move(wide);
    group_forms.unequal = std::move(forms);
    return group_forms;
  }
  const int count = static_cast<int>(homes.size());
  const Result<std::int64_t> blocks =
      kv_blocks_to_regroup(config.spec, group_forms.home, count, by, config.budget);
  if (!blocks.ok()) {
    return Error{ErrorCode::kInvalidArgument, blocks.error().message};  // smaller KV would not help
  }
  if (*blocks < group_forms.home.kv.blocks) {
    group_forms.shrunk_from = std::exchange(group_forms.home.kv.blocks, *blocks);
  }
  group_forms.wide = divided_form(group_forms.home, count, by).value();
  return group_forms;
}

// `before`: the KV blocks that the homes have together.
Status check_gain(const GroupConfig& config, const GroupForms& group, std::int64_t before,
                  bool insists) {
  const std::int64_t most = most_kv_blocks(config, group.wide);
  return insists || most > before
             ? Status()
             : make_error(ErrorCode::kExhausted,
                          "the group would have {} KV blocks, and its replicas have {} together",
                          most, before);
}

// Refuses a group for which a home has to change its form, if it cannot.
Status check_led(const GroupConfig& config, const std::vector<JoiningHome>& homes,
                 const GroupForms& group_forms, bool insists) {
  const std::vector<Form> forms = group_forms.home_forms();
  if (forms == forms_of(homes)) {
    return {};
  }
  std::int64_t before = 0;
  for (std::size_t home = 0; home < homes.size(); ++home) {
    const JoiningHome& joining = homes[home];
    const std::int64_t blocks = forms[home].kv.blocks;
    before += joining.form.kv.blocks;
    if (joining.engine != nullptr && blocks < joining.form.kv.blocks) {
      Status room = check_room(*joining.engine, joining.replica, blocks, insists);
      if (!room.ok()) {
        return room;
      }
    }
  }
  return check_gain(config, group_forms, before, insists);
}

}  // namespace

Status check_morphs(const Engine& engine, ReplicaId replica, std::int64_t blocks) {
  return engine.form()
             ? Status()
             : make_error(ErrorCode::kInvalidArgument,
                          "KV of replica {} has to shrink to {} blocks: start the server with "
                          "--morph, or with that many blocks",
                          replica.value, blocks);
}

Status check_room(const Engine& engine, ReplicaId replica, std::int64_t blocks, bool may_preempt) {
  if (Status may = check_morphs(engine, replica, blocks); !may.ok()) {
    return may;
  }
  if (const std::int64_t needed = engine.largest_need(); needed > blocks) {
    return make_error(ErrorCode::kExhausted,
                      "KV of replica {} has to shrink to {} blocks, but a request needs {}: ask "
                      "again when it has ended",
                      replica.value, blocks, needed);
  }
  const std::int64_t used = engine.observe().kv_blocks_used;
  return may_preempt || used <= blocks
             ? Status()
             : make_error(ErrorCode::kExhausted,
                          "KV of replica {} has to shrink to {} blocks, but {} are in use",
                          replica.value, blocks, used);
}

Status check_shrunk(const GroupConfig& config, const std::vector<Station>& stations,
                    const GroupForms& group, bool insists) {
  for (const ReplicaId home : group.homes) {
    const Station& station = stations[static_cast<std::size_t>(home.value)];
    Status room = check_room(*station.engine, home, group.home.kv.blocks, insists);
    if (!room.ok() && !station.parked) {
      return room;
    }
  }
  return check_gain(config, group, group.blocks_apart(), insists);
}

HomeBlocks GroupForms::home_blocks() const {
  std::vector<std::int64_t> each;
  for (const Form& form : home_forms()) {
    each.push_back(form.kv.blocks);
  }
  return HomeBlocks(std::move(each));
}

Form GroupForms::joined() const {
  return joined_form(home_forms());
}

Result<GroupForms> group_forms_of(const GroupConfig& config, const std::vector<JoiningHome>& homes,
                                  GroupBy by, bool insists) {
  const std::vector<Form> forms = forms_of(homes);
  const bool equal_devices = of_equal_devices(forms);
  const auto other = std::ranges::find_if(
      homes, [&](const JoiningHome& home) { return !equally_precise(home.form, forms.front()); });
  Result<std::vector<Form>> precisions = std::vector{forms.front()};
  if (other != homes.end()) {
    precisions = precisions_for(config.spec, homes);
  } else if (const auto differs = std::ranges::find_if(
                 homes, [&](const JoiningHome& home) { return home.form != forms.front(); });
             equal_devices && differs != homes.end()) {
    return different(homes.front(), *differs);
  }
  if (!precisions.ok()) {
    return precisions.error();
  }
  Result<GroupForms> group_forms = Error{};
  for (const Form& precision : *precisions) {
    Result<std::vector<Form>> led = forms_at(precision, homes, !equal_devices);
    group_forms = led.ok() ? group_forms_at(config, homes, by, *std::move(led)) : led.error();
    const Status may =
        group_forms.ok() ? check_led(config, homes, *group_forms, insists) : group_forms.error();
    if (may.ok()) {
      return group_forms;
    }
    group_forms = may.error();
  }
  return group_forms;
}

// Finds the forms on the way, or leads the homes to those with which they become one, after which
// they rest again. Returns why there is no way.
std::optional<Error> Regrouping::agree() {
  if (lead_.to) {
    if (auto why = compare_homes()) {
      return why;
    }
    static_cast<GroupForms&>(group_) = *lead_.to;
  } else {
    std::vector<JoiningHome> homes;
    for (std::size_t home = 0; home < count(); ++home) {
      lead_.from[home] = numbered(engine(home).form().value_or(lead_.from[home]));
      homes.push_back({group_.homes[home], lead_.from[home], &engine(home)});
    }
    Result<GroupForms> group_forms =
        group_forms_of(config_, homes, group_.by, haste_ == Haste::kPreempts);
    if (!group_forms.ok()) {
      return group_forms.error();
    }
    if (group_forms->home_forms() != lead_.from) {
      return lead_homes(*std::move(group_forms));
    }
    static_cast<GroupForms&>(group_) = *std::move(group_forms);
  }
  joined_ = form_ = group_.joined();
  return std::nullopt;
}

void Regrouping::count_preempted() {
  if (lead_.to) {
    record_.preempted += static_cast<int>(preemptions() - wait_.preemptions);
    wait_.preemptions = preemptions();
  }
}

// Returns the preemptions so far of the homes that are led to less KV. Others preempt for load
// alone.
std::int64_t Regrouping::preemptions() const {
  const std::vector<Form> to = lead_.to->home_forms();
  std::int64_t sum = 0;
  for (std::size_t home = 0; home < to.size(); ++home) {
    if (to[home].kv.blocks < lead_.from[home].kv.blocks) {
      const Station& station = stations_[static_cast<std::size_t>(group_.homes[home].value)];
      sum += station.engine->observe().preemptions_total;
    }
  }
  return sum;
}

// Lets the homes change their forms between two steps. Returns why they cannot. Sequences that run
// are preempted only if an operator asks for the group.
std::optional<Error> Regrouping::lead_homes(GroupForms group_forms) {
  static_cast<GroupForms&>(group_) = group_forms;
  group_.wide = {};  // until the homes are there
  lead_.to = std::move(group_forms);
  wait_.preemptions = preemptions();
  const std::vector<Form> to = lead_.to->home_forms();
  if (std::ranges::equal(to, lead_.from, equally_precise)) {
    hold_all();  // so that no request takes the blocks to which others move
  }
  for (std::size_t home = 0; home < count(); ++home) {
    if (to[home] == lead_.from[home]) {
      continue;
    }
    const Result<Morph> morph = engine(home).lead_form(wish_for(to[home]), now_ns_);
    if (!morph.ok()) {
      return morph.error();
    }
    const std::int64_t blocks = to[home].kv.blocks;
    if (blocks < lead_.from[home].kv.blocks) {
      engine(home).promise_kv(blocks, std::max(group_.shrunk_from, lead_.from[home].kv.blocks));
    }
  }
  return std::nullopt;
}

// Returns why homes at rest do not have the forms to which they were led.
std::optional<Error> Regrouping::compare_homes() const {
  const std::vector<Form> wanted = lead_.to->home_forms();
  for (std::size_t home = 0; home < count(); ++home) {
    const ReplicaId replica = group_.homes[home];
    const Form now = numbered(*stations_[static_cast<std::size_t>(replica.value)].engine->form());
    if (!equally_precise(now, wanted[home])) {
      return make_error(ErrorCode::kUnavailable,
                        "replica {} stays at '{}' and does not come to '{}': see why in the "
                        "history of its form",
                        replica.value, to_string(now), to_string(wanted[home]));
    }
    if (now.kv.blocks != wanted[home].kv.blocks) {
      return make_error(ErrorCode::kExhausted,
                        "the KV cache of replica {} stays at {} blocks and does not come to {}: "
                        "see why in the history of its form",
                        replica.value, now.kv.blocks, wanted[home].kv.blocks);
    }
  }
  return std::nullopt;
}

// Gives a home the form that it had before the group, or before it was led to one that did not
// form. Returns false if it cannot have it.
bool Regrouping::restore_home(std::size_t home) {
  std::optional<Form> form = engine(home).form();
  if (!form || !at(group_.homes[home]).failure.empty() || (!lead_.to && group_.shrunk_from == 0)) {
    return true;
  }
  if (lead_.to) {
    form = lead_.from[home];
  } else {
    form->kv.blocks = group_.shrunk_from;
  }
  return engine(home).lead_form(wish_for(*form), now_ns_).ok();
}

}  // namespace protean
