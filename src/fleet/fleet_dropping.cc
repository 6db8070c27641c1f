// Replicas drop layers that others hold while KV is short (KunServe section 4.1), and more replicas
// are wanted if that does not suffice.

#include <algorithm>

#include "control/plan_regroup.h"
#include "cost/memory.h"
#include "fleet/fleet.h"

namespace protean {
namespace {

// Returns the least number of layers that a device holds.
int least_layers(const Form& form) {
  int least = static_cast<int>(form.layer_precision.size());
  for (const Holding& holding : form.group) {
    const auto held = std::count_if(holding.layers.begin(), holding.layers.end(),
                                    [](const Holding::Layer& layer) { return !layer.empty(); });
    least = std::min(least, static_cast<int>(held));
  }
  return least;
}

}  // namespace

// Returns all that serve; nothing while the KV cache of one may be about to grow.
std::optional<std::vector<DropCandidate>> Fleet::drop_candidates() const {
  std::vector<DropCandidate> candidates;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (!in_service(i)) {
      continue;
    }
    if (!stations_[i].engine->form_at_rest()) {
      return std::nullopt;
    }
    const Observation& seen = seen_[i];
    DropCandidate& candidate =
        candidates.emplace_back(DropCandidate{.replicas = grouping_.replicas_of(replica),
                                              .by_layers = serves_by_layers(i),
                                              .kv_blocks = seen.kv_blocks,
                                              .kv_blocks_used = seen.kv_blocks_used,
                                              .kv_blocks_awaited = seen.kv_blocks_awaited,
                                              .whole_kv_blocks = seen.kv_blocks});
    if (candidate.by_layers) {
      const Group& group = grouping_.group(replica);
      candidate.whole_kv_blocks = std::ssize(group.homes) * group.home.kv.blocks;
    }
  }
  return candidates;
}

// Returns what candidates hold that may drop copies.
std::vector<DropCopy> Fleet::drop_copies(std::span<const DropCandidate> candidates) const {
  const ModelSpec& spec = grouping_.config().spec;
  std::vector<Form> kinds;
  std::vector<DropCopy> copies;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].by_layers) {
      continue;
    }
    const ReplicaId first = candidates[i].replicas.front();
    Form form = joined_form(at(first).form().value_or(grouping_.loaded_form(first)), 1);
    const auto kind = std::find(kinds.begin(), kinds.end(), form) - kinds.begin();
    DropCopy& copy = copies.emplace_back(DropCopy{
        .candidate = i,
        .kind = static_cast<int>(kind),
        .layers = least_layers(form),
        .embedding_bytes = component_bytes(spec, Component::kEmbeddings, form.embeddings)});
    copy.layer_bytes = weight_bytes(spec, form) - copy.embedding_bytes;
    if (kind == std::ssize(kinds)) {
      kinds.push_back(std::move(form));
    }
  }
  return copies;
}

// Forms or parts groups by layers if the policy finds a reason.
void Fleet::drop_or_restore(TimeNs now_ns) {
  const auto candidates = now_ns < attempts_.not_before_ns ? std::nullopt : drop_candidates();
  if (!candidates) {
    return;
  }
  const GroupConfig& config = grouping_.config();
  if (blocks_lacking(*candidates) > 0) {
    const auto drop = choose_drop(*candidates, drop_copies(*candidates),
                                  kv_block_bytes(config.spec, config.form.kv));
    if (drop && !grouping_.want(*drop, "queued requests lack KV", false, now_ns).ok()) {
      attempts_.not_before_ns = now_ns + kNsPerS;
    }
    count_failures(now_ns);
  } else if (const auto restore = config.restores ? choose_restore(*candidates) : std::nullopt) {
    (void)grouping_.want(*restore, "KV in use fits the replicas with all layers", false, now_ns);
  }
}

// Forms or parts groups by layers if the replicas vote for it.
void Fleet::drop_by_vote(TimeNs now_ns) {
  const auto candidates = now_ns < attempts_.not_before_ns ? std::nullopt : drop_candidates();
  const auto wish = candidates ? shortage_.vote.vote(*candidates, now_ns) : std::nullopt;
  if (!wish) {
    return;
  }
  const bool restores = wish->groups.front().size() == 1;
  const bool begun = grouping_
                         .want(*wish,
                               restores ? "nothing waits, KV in use is at most half and falls"
                                        : "the replicas' KV is full, by a vote",
                               false, now_ns)
                         .ok();
  if (!begun) {
    attempts_.not_before_ns = now_ns + kNsPerS;
  }
  count_failures(now_ns);
}

// Tells how many replicas are wanted, if that has changed.
void Fleet::tell_replicas_wanted(TimeNs now_ns) {
  KvShortage kv{.replicas = static_cast<int>(stations_.size())};
  ReplicasWanted now{.serving = 0, .wanted = 0};
  std::int64_t most_each = 0;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    now.serving += stations_[i].failure.empty() ? 1 : 0;
    if (in_service(i)) {
      const Observation& seen = seen_[i];
      kv.lacking_blocks += seen.kv_blocks_awaited - (seen.kv_blocks - seen.kv_blocks_used);
      most_each = std::max(most_each, seen.kv_blocks);
    }
  }
  const std::int64_t loaded = grouping_.config().form.kv.blocks;
  kv.blocks_each = loaded > 0 ? loaded : most_each;  // 0: there are no groups
  shortage_.demand.see(kv, now_ns);
  now.wanted = shortage_.demand.wanted();
  if (shortage_.told == now) {
    return;
  }
  shortage_.told = now;
  OutputBatch batch{.at_ns = now_ns};
  batch.observation = at(ReplicaId{0}).observe();
  batch.replicas_wanted = now;
  sink_.emit(std::move(batch));
}

}  // namespace protean
