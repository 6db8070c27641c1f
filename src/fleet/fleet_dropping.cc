// Policies that drop layers while KV is short, and the number of replicas that are wanted if that
// does not suffice.

#include <algorithm>
#include <utility>

#include "fleet/fleet.h"

namespace protean {

// Forms or parts groups by layers as `--drop paper` or `--drop released` decide. If groups cannot
// be had, no policy asks for a while.
void Fleet::drop(TimeNs now_ns) {
  using Outcome = GroupDropping::Outcome;
  const DropPolicy policy = grouping_.config().drop;
  const bool may_ask = attempts_.may_ask(now_ns);
  Outcome outcome = Outcome::kNothingToAsk;
  if (policy == DropPolicy::kPaper) {
    outcome = dropping_.drop_or_restore(may_ask, now_ns);
  } else if (policy == DropPolicy::kReleased && may_ask && !grouping_.busy()) {
    outcome = dropping_.vote(now_ns);
  }
  if (outcome == Outcome::kRefused) {
    attempts_.refused(now_ns);
  }
  if (outcome != Outcome::kNothingToAsk) {
    count_failures(now_ns);
  }
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
  demand_.see(kv, now_ns);
  now.wanted = demand_.wanted();
  if (told_replicas_ == now) {
    return;
  }
  told_replicas_ = now;
  OutputBatch batch = batch_of(ReplicaId{0}, now_ns);
  batch.replicas_wanted = now;
  sink_.emit(std::move(batch));
}

}  // namespace protean
