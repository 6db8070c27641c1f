#include "fleet/group_attempts.h"

#include <algorithm>
#include <utility>

namespace protean {

void GroupAttempts::failed(TimeNs now_ns) {
  if (!may_ask(now_ns)) {
    return;
  }
  const bool in_a_row = now_ns - not_before_ns_ <= (kNsPerS << kMostDoublings);
  failed_in_a_row_ = in_a_row ? failed_in_a_row_ : 0;
  not_before_ns_ = now_ns + (kNsPerS << std::min(failed_in_a_row_++, kMostDoublings));
}

bool GroupAttempts::awaits(const Grouping::Failure& failure) const {
  return std::ranges::find_first_of(failure.replicas, awaited_.replicas) != failure.replicas.end();
}

// While the group that was asked for forms, held requests wait for no other change.
bool GroupAttempts::counts(const Grouping::Failure& failure) {
  if (awaits(failure)) {
    return !std::exchange(awaited_.failed, true) || failure.stuck;
  }
  return failure.stuck && awaited_.replicas.empty();
}

void GroupAttempts::forget_ended(const Grouping& grouping) {
  if (std::ranges::none_of(awaited_.replicas,
                           [&](ReplicaId one) { return grouping.changes(one); })) {
    awaited_ = {};
  }
}

}  // namespace protean
