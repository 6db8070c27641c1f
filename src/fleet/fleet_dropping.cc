// Replicas drop layers that others hold while KV is short (KunServe section 4.1).

#include "cost/memory.h"
#include "fleet/fleet.h"

namespace protean {

// Forms or parts groups by layers if the policy finds a reason.
void Fleet::drop_or_restore(TimeNs now_ns) {
  if (now_ns < attempts_.not_before_ns) {
    return;
  }
  std::vector<DropCandidate> candidates;
  for (std::size_t i = 0; i < stations_.size(); ++i) {
    const ReplicaId replica{static_cast<std::int32_t>(i)};
    if (!in_service(i)) {
      continue;
    }
    if (!stations_[i].engine->form_at_rest()) {
      return;  // its KV cache may be about to grow
    }
    std::vector<ReplicaId> replicas = grouping_.replicas_of(replica);
    const auto count = static_cast<std::int64_t>(replicas.size());
    candidates.push_back(
        {.replicas = std::move(replicas),
         .by_layers = grouping_.is_group(replica) && grouping_.by(replica) == GroupBy::kLayers,
         .kv_blocks = seen_[i].kv_blocks,
         .kv_blocks_used = seen_[i].kv_blocks_used,
         .kv_blocks_awaited = seen_[i].kv_blocks_awaited,
         .whole_kv_blocks = count * grouping_.config().form.kv.blocks});
  }
  const GroupConfig& config = grouping_.config();
  const DropCosts costs{.copy_bytes = weight_bytes(config.spec, config.form),
                        .block_bytes = kv_block_bytes(config.spec, config.form.kv),
                        .layers = config.spec.layers};
  if (const auto drop = choose_drop(candidates, costs)) {
    if (!grouping_.want(*drop, "queued requests lack KV", false, now_ns).ok()) {
      attempts_.not_before_ns = now_ns + kNsPerS;
    }
    count_failures(now_ns);
  } else if (const auto restore = choose_restore(candidates)) {
    (void)grouping_.want(*restore, "KV in use fits the replicas with all layers", false, now_ns);
  }
}

}  // namespace protean
