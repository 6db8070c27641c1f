#include "control/replica_demand.h"

#include <algorithm>

namespace protean {

int replicas_needed(const KvShortage& shortage) {
  if (shortage.lacking_blocks <= 0 || shortage.blocks_each <= 0) {
    return shortage.replicas;
  }
  return shortage.replicas +
         static_cast<int>(ceil_div(shortage.lacking_blocks, shortage.blocks_each));
}

void ReplicaDemand::see(const KvShortage& shortage, TimeNs now_ns) {
  const int needed = replicas_needed(shortage);
  if (needed == wanted_) {
    trend_.reset();
    return;
  }
  const bool more = needed > wanted_;
  if (!trend_ || (trend_->nearest > wanted_) != more) {
    trend_ = {now_ns, needed};
  }
  trend_->nearest = more ? std::min(trend_->nearest, needed) : std::max(trend_->nearest, needed);
  if (now_ns - trend_->since_ns >= after_ns_) {
    wanted_ = trend_->nearest;
    trend_ = needed == wanted_ ? std::nullopt : std::optional(Trend{now_ns, needed});
  }
}

std::optional<TimeNs> ReplicaDemand::next_ns() const {
  return trend_ ? std::optional(trend_->since_ns + after_ns_) : std::nullopt;
}

}  // namespace protean
