// Replicas drop layers that others hold while KV is short (KunServe section 4.1), and more replicas
// are wanted if that does not suffice.

#include <algorithm>

#include "control/plan_regroup.h"
#include "cost/memory.h"
#include "fleet/fleet.h"

namespace protean {
namespace {

constexpr const char* kLacksKv = "queued requests lack KV";

// Returns true if pipelines of these forms may become one although they are of unequal length.
bool may_rebalance(const Form& a, const Form& b) {
  const auto width = [](const Form& form) { return stages_of(form).front().devices.size(); };
  return equally_precise(a, b) && a.kv.precision == b.kv.precision &&
         a.kv.block_tokens == b.kv.block_tokens && width(a) == width(b) &&
         a.group.size() != b.group.size();
}

}  // namespace

// Returns all that serve.
std::vector<DropCandidate> Fleet::drop_candidates() const {
  std::vector<DropCandidate> candidates;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (!in_service(i)) {
      continue;
    }
    const Engine& engine = *stations_[i].engine;
    const Observation& seen = seen_[i];
    const bool changes = grouping_.changes(replica);
    const std::vector<ReplicaId> replicas =
        changes ? grouping_.changing(replica) : grouping_.replicas_of(replica);
    const auto known = changes ? std::ranges::find(candidates, replicas, &DropCandidate::replicas)
                               : candidates.end();
    if (known != candidates.end()) {  // another home of a change
      known->kv_blocks_used += seen.kv_blocks_used;
      known->kv_blocks_awaited += seen.kv_blocks_awaited;
      known->waiting += seen.waiting;
      continue;
    }
    const std::int64_t blocks = changes                 ? grouping_.kv_blocks_ahead(replica)
                                : engine.form_at_rest() ? seen.kv_blocks
                                                        : engine.kv_blocks_ahead();
    DropCandidate& candidate = candidates.emplace_back(
        DropCandidate{.replicas = replicas,
                      .by_layers = !changes && serves_by_layers(i),
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
  return candidates;
}

// Returns what candidates hold that may drop copies: of each kind if they are `unequal`, pipelines
// of any length, else of one.
std::vector<DropHolding> Fleet::drop_holdings(std::span<const DropCandidate> candidates,
                                              bool unequal) const {
  const ModelSpec& spec = grouping_.config().spec;
  struct Like {
    Form form;
    ReplicaId first;
  };
  std::vector<std::vector<Like>> kinds;  // those that differ
  std::vector<DropHolding> holdings;
  for (std::size_t i = 0; i < candidates.size() && candidates.size() > 1; ++i) {
    if (!candidates[i].settled) {
      continue;
    }
    const ReplicaId first = candidates[i].replicas.front();
    Form form = joined_form(at(first).form().value_or(grouping_.loaded_form(first)), 1);
    const auto is_like = [&](const Like& member) {
      return member.form == form &&
             (!candidates[i].by_layers || grouping_.made_alike(member.first, first));
    };
    const auto same = std::ranges::find_if(kinds, [&](const std::vector<Like>& kind) {
      return std::ranges::all_of(kind, [&](const Like& member) {
        return is_like(member) || (unequal && may_rebalance(member.form, form));
      });
    });
    const auto kind = same - kinds.begin();
    const bool by_layers = candidates[i].by_layers;
    holdings.push_back(
        {.candidate = i,
         .kind = static_cast<int>(kind),
         .stages = by_layers ? static_cast<int>(stages_of(form).size()) : 1,
         .layers = spec.layers,
         .layer_bytes = weight_bytes(spec, form) -
                        component_bytes(spec, Component::kEmbeddings, form.embeddings)});
    if (kind == std::ssize(kinds)) {
      kinds.emplace_back();
    }
    std::vector<Like>& members = kinds[static_cast<std::size_t>(kind)];
    if (std::ranges::none_of(members, is_like)) {
      members.push_back({std::move(form), first});
    }
  }
  return holdings;
}

// Forms groups by layers that drop what queued requests lack. Returns false if none can form that
// was planned, or of equal ones, if none is planned.
bool Fleet::drop_copies(std::span<const DropCandidate> candidates, bool unequal, TimeNs now_ns) {
  const GroupConfig& config = grouping_.config();
  const auto drop = choose_drop(candidates, drop_holdings(candidates, unequal),
                                kv_block_bytes(config.spec, config.form.kv));
  bool some = !drop && unequal;
  for (const auto& group : drop ? drop->groups : std::vector<std::vector<ReplicaId>>()) {
    const GroupWish one{.groups = {group}, .by = GroupBy::kLayers};
    const bool begins =
        grouping_.join_at_once(group) && grouping_.want(one, kLacksKv, false, now_ns).ok();
    some = begins || some;
  }
  return some;
}

// Forms or parts groups by layers if the policy finds a reason. Replicas that change already go on
// with that.
void Fleet::drop_or_restore(TimeNs now_ns) {
  if (!attempts_.may_ask(now_ns) && grouping_.waiting_to_part().empty()) {
    return;
  }
  std::vector<DropCandidate> candidates = drop_candidates();
  const bool lacks = blocks_lacking(candidates) > 0;
  if ((lacks && keep_dropped(now_ns)) || !attempts_.may_ask(now_ns)) {
    return;
  }
  if (lacks) {
    // As the plan says, or if stages cannot be rebalanced so, of candidates of equal size.
    if (!drop_copies(candidates, true, now_ns) && !drop_copies(candidates, false, now_ns)) {
      attempts_.refused(now_ns);
    }
    count_failures(now_ns);
    return;
  }
  if (!grouping_.config().restores) {
    return;
  }
  for (DropCandidate& candidate : candidates) {
    candidate.largest_need =
        candidate.by_layers ? at(candidate.replicas.front()).largest_need() : 0;
  }
  if (const auto restore = choose_restore(candidates)) {
    (void)grouping_.want(*restore, "KV in use fits the replicas with all layers", false, now_ns);
  }
}

// Keeps groups that wait for room in their replicas. Returns false if there are none.
bool Fleet::keep_dropped(TimeNs now_ns) {
  bool some = false;
  for (const ReplicaId waits : grouping_.waiting_to_part()) {
    if (grouping_.waits_to_part(waits) && grouping_.group(waits).by == GroupBy::kLayers) {
      const GroupWish wish{.groups = {grouping_.changing(waits)}, .by = GroupBy::kLayers};
      some = grouping_.want(wish, kLacksKv, false, now_ns).ok() || some;
    }
  }
  return some;
}

// Returns the blocks that queued requests need beyond those that are free. A group that waits to
// part has no more than its replicas will have.
std::int64_t Fleet::lacking_blocks() const {
  std::int64_t lacking = 0;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const Observation& seen = seen_[i];
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    const std::int64_t blocks =
        grouping_.waits_to_part(replica)
            ? std::min(seen.kv_blocks, grouping_.group(replica).blocks_apart())
            : seen.kv_blocks;
    const std::int64_t free = std::max<std::int64_t>(0, blocks - seen.kv_blocks_used);
    lacking += in_service(i) ? seen.kv_blocks_awaited - free : 0;
  }
  return lacking;
}

// Forms or parts groups by layers if the replicas vote for it.
void Fleet::drop_by_vote(TimeNs now_ns) {
  if (!attempts_.may_ask(now_ns)) {
    return;
  }
  const std::vector<DropCandidate> candidates = drop_candidates();
  const bool settled = std::ranges::all_of(candidates, &DropCandidate::settled);
  const auto wish = settled ? shortage_.vote.vote(candidates, now_ns) : std::nullopt;
  if (!wish) {
    return;
  }
  const bool restores = wish->by != GroupBy::kLayers;
  const bool begun = grouping_
                         .want(*wish,
                               restores ? "nothing waits, KV in use is at most half and falls"
                                        : "the replicas' KV is full, by a vote",
                               false, now_ns)
                         .ok();
  if (!begun) {
    attempts_.refused(now_ns);
  }
  count_failures(now_ns);
}

// Tells how many replicas are wanted, if that has changed.
void Fleet::tell_replicas_wanted(TimeNs now_ns) {
  KvShortage kv{.replicas = static_cast<int>(stations_.size())};
  ReplicasWanted now{.serving = 0, .wanted = 0};
  kv.lacking_blocks = lacking_blocks();
  std::int64_t most_each = 0;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    now.serving += stations_[i].failure.empty() ? 1 : 0;
    most_each = in_service(i) ? std::max(most_each, seen_[i].kv_blocks) : most_each;
  }
  const std::int64_t loaded = grouping_.config().form.kv.blocks;
  kv.blocks_each = loaded > 0 ? loaded : most_each;  // 0: there are no groups
  shortage_.demand.see(kv, now_ns);
  now.wanted = shortage_.demand.wanted();
  if (shortage_.told == now) {
    return;
  }
  shortage_.told = now;
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.replicas_wanted = now;
  sink_.emit(std::move(batch));
}

}  // namespace protean
