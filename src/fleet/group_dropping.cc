// Replicas drop layers that others hold while KV is short (KunServe section 4.1).

#include "fleet/group_dropping.h"

#include <algorithm>
#include <array>
#include <utility>

#include "control/plan_regroup.h"
#include "cost/memory.h"
#include "cost/pages.h"

namespace protean {
namespace {

constexpr const char* kLacksKv = "queued requests lack KV";

// A candidate's form, and what decides if it may become one with others.
struct Like {
  Form form;
  ReplicaId first;
  bool alone = true;  // a replica, not a group
};

// Returns true if candidates may become one although they have unequal devices or precisions.
bool may_even_out(const Like& a, const Like& b) {
  const auto width = [](const Form& form) { return stages_of(form).front().devices.size(); };
  return of_equal_devices(std::array{a.form, b.form})
             ? a.alone && b.alone && !equally_precise(a.form, b.form)
             : width(a.form) == width(b.form);
}

// Counts the weights of all layers that devices of this form hold, and their memory, by stage.
void count_memory(const GroupConfig& config, const Form& form, DropHolding& holding) {
  const PageBudget& budget = config.budget;
  const std::vector<DevicePages> devices = pages_by_device(config.spec, form, budget.page_bytes);
  const std::size_t of_first_stage = devices.size() / static_cast<std::size_t>(holding.stages);
  std::int64_t layers = 0;
  std::int64_t memory = 0;
  std::int64_t embeddings = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (const auto& [attention, mlp] : devices[i].layers) {
      layers += attention + mlp;
    }
    memory += budget.pages - budget.reserve - devices[i].lacking;
    embeddings += i < of_first_stage ? devices[i].embeddings : 0;
  }
  holding.layer_bytes = layers * budget.page_bytes;
  holding.memory_bytes = (memory / holding.stages - embeddings) * budget.page_bytes;
}

}  // namespace

GroupDropping::Outcome GroupDropping::drop_or_restore(bool may_ask, TimeNs now_ns) {
  if (!may_ask && grouping_.waiting_to_part().empty()) {
    return Outcome::kNothingToAsk;
  }
  std::vector<DropCandidate> all = candidates();
  const bool lacks = blocks_lacking(all) > 0;
  if ((lacks && keep_dropped(now_ns)) || !may_ask) {
    return Outcome::kNothingToAsk;
  }
  if (lacks) {
    // As the plan says, or if candidates cannot be evened out so, of those of equal form.
    const Outcome first = drop_copies(all, true, now_ns);
    const Outcome second =
        first == Outcome::kAsked ? Outcome::kNothingToAsk : drop_copies(all, false, now_ns);
    return second == Outcome::kNothingToAsk ? first : second;
  }
  if (grouping_.config().restores) {
    restore(std::move(all), now_ns);
  }
  return Outcome::kNothingToAsk;
}

// Parts a group whose KV in use fits its replicas without a drop.
void GroupDropping::restore(std::vector<DropCandidate> all, TimeNs now_ns) {
  for (DropCandidate& candidate : all) {
    candidate.largest_need =
        candidate.by_layers ? engine_of(candidate.replicas.front()).largest_need() : 0;
  }
  if (const auto wish = choose_restore(all)) {
    (void)grouping_.want(*wish, "KV in use fits the replicas with all layers", false, now_ns);
  }
}

GroupDropping::Outcome GroupDropping::vote(TimeNs now_ns) {
  const std::vector<DropCandidate> all = candidates();
  const bool settled = std::ranges::all_of(all, &DropCandidate::settled);
  const auto wish = settled ? vote_.vote(all, now_ns) : std::nullopt;
  if (!wish) {
    return Outcome::kNothingToAsk;
  }
  const bool restores = wish->by != GroupBy::kLayers;
  const bool begun = grouping_
                         .want(*wish,
                               restores ? "nothing waits, KV in use is at most half and falls"
                                        : "the replicas' KV is full, by a vote",
                               false, now_ns)
                         .ok();
  return begun ? Outcome::kAsked : Outcome::kRefused;
}

// Returns all that serve.
std::vector<DropCandidate> GroupDropping::candidates() const {
  std::vector<DropCandidate> all;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (!grouping_.in_service(replica)) {
      continue;
    }
    const Engine& engine = *stations_[i].engine;
    const Observation& seen = seen_[i];
    const bool changes = grouping_.changes(replica);
    const std::vector<ReplicaId> replicas =
        changes ? grouping_.changing(replica) : grouping_.replicas_of(replica);
    const auto known =
        changes ? std::ranges::find(all, replicas, &DropCandidate::replicas) : all.end();
    if (known != all.end()) {  // another home of a change
      known->kv_blocks_used += seen.kv_blocks_used;
      known->kv_blocks_awaited += seen.kv_blocks_awaited;
      known->waiting += seen.waiting;
      continue;
    }
    const std::int64_t blocks = changes                 ? grouping_.kv_blocks_ahead(replica)
                                : engine.form_at_rest() ? seen.kv_blocks
                                                        : engine.kv_blocks_ahead();
    DropCandidate& candidate = all.emplace_back(
        DropCandidate{.replicas = replicas,
                      .by_layers = !changes && grouping_.serves_by_layers(replica),
                      .settled = grouping_.settled(replica) && engine.form_at_rest(),
                      .kv_blocks = blocks,
                      .kv_blocks_used = seen.kv_blocks_used,
                      .kv_blocks_awaited = seen.kv_blocks_awaited,
                      .waiting = seen.waiting,
                      .whole_kv_blocks = blocks,
                      .homes = {}});
    if (candidate.by_layers) {
      const Group& group = grouping_.group(replica);
      candidate.homes = grouping_.homes_of(replica);
      candidate.home_kv_blocks = group.home.kv.blocks;
      candidate.whole_kv_blocks = group.blocks_apart();
    }
  }
  return all;
}

// Returns what candidates hold that may drop copies: of each kind if they are `unequal`, pipelines
// of any length and replicas of any precision, else of one.
std::vector<DropHolding> GroupDropping::holdings(std::span<const DropCandidate> candidates,
                                                 bool unequal) const {
  const ModelSpec& spec = grouping_.config().spec;
  std::vector<std::vector<Like>> kinds;  // those that differ
  std::vector<DropHolding> held;
  for (std::size_t i = 0; i < candidates.size() && candidates.size() > 1; ++i) {
    if (!candidates[i].settled) {
      continue;
    }
    const ReplicaId first = candidates[i].replicas.front();
    const Like like{joined_form(engine_of(first).form().value_or(grouping_.loaded_form(first)), 1),
                    first, !grouping_.is_group(first)};
    const auto is_like = [&](const Like& member) {
      return member.form == like.form &&
             (!candidates[i].by_layers || grouping_.made_alike(member.first, first));
    };
    const auto same = std::ranges::find_if(kinds, [&](const std::vector<Like>& kind) {
      return std::ranges::all_of(kind, [&](const Like& member) {
        return is_like(member) || (unequal && may_even_out(member, like));
      });
    });
    const auto kind = same - kinds.begin();
    DropHolding& holding = held.emplace_back(
        DropHolding{.candidate = i, .kind = static_cast<int>(kind), .layers = spec.layers});
    holding.stages = candidates[i].by_layers ? static_cast<int>(stages_of(like.form).size()) : 1;
    count_memory(grouping_.config(), like.form, holding);
    if (kind == std::ssize(kinds)) {
      kinds.emplace_back();
    }
    std::vector<Like>& members = kinds[static_cast<std::size_t>(kind)];
    if (std::ranges::none_of(members, is_like)) {
      members.push_back(like);
    }
  }
  return held;
}

// Forms groups by layers that drop what queued requests lack.
GroupDropping::Outcome GroupDropping::drop_copies(std::span<const DropCandidate> candidates,
                                                  bool unequal, TimeNs now_ns) {
  const GroupConfig& config = grouping_.config();
  const auto drop = choose_drop(candidates, holdings(candidates, unequal),
                                kv_block_bytes(config.spec, config.form.kv));
  if (!drop) {
    return Outcome::kNothingToAsk;
  }
  Outcome outcome = Outcome::kRefused;
  for (const auto& group : drop->groups) {
    const GroupWish one{.groups = {group}, .by = GroupBy::kLayers};
    if (grouping_.join_at_once(group) && grouping_.want(one, kLacksKv, false, now_ns).ok()) {
      outcome = Outcome::kAsked;
    }
  }
  return outcome;
}

// Keeps groups that wait for room in their replicas. Returns false if there are none.
bool GroupDropping::keep_dropped(TimeNs now_ns) {
  bool some = false;
  for (const ReplicaId waits : grouping_.waiting_to_part()) {
    if (grouping_.waits_to_part(waits) && grouping_.group(waits).by == GroupBy::kLayers) {
      const GroupWish wish{.groups = {grouping_.changing(waits)}, .by = GroupBy::kLayers};
      some = grouping_.want(wish, kLacksKv, false, now_ns).ok() || some;
    }
  }
  return some;
}

}  // namespace protean
