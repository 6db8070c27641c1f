// Another executor takes the place of a fleet's only replica, with its requests, also of one whose
// devices have failed.

#include <algorithm>
#include <iterator>
#include <utility>

#include "fleet/fleet.h"

namespace protean {

Status Fleet::succeed(const Member& by, ReplicaId as, TimeNs now_ns) {
  const bool alone = stations_.size() == 1 && grouping_.config().devices == nullptr;
  if (!alone || !migrations_.exchanges() || index_of(as) < stations_.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "other devices take over only from a replica that is alone and joins no "
                      "other: load a second copy");
  }
  if (succession_.running()) {
    return make_error(ErrorCode::kUnavailable, "replica 0 {}", why_not(ReplicaId{0}));
  }
  Member next = by;
  if (next.engine.morph) {
    next.engine.morph->weighed = weighs(grouping_.config());
  }
  if (!stations_.front().failure.empty()) {
    succession_.replace(next, grouping_.mend(ReplicaId{0}), now_ns);
    advance_succession(now_ns);
    regroup(now_ns);  // which serves what waits
    return {};
  }
  Status begun = succession_.begin(next, as, now_ns);
  advance_succession(now_ns);
  return begun;
}

void Fleet::hold(std::vector<HeldRequest> requests, TimeNs now_ns) {
  std::move(requests.begin(), requests.end(), std::back_inserter(held_));
  regroup(now_ns);  // which serves them
}

std::vector<HeldRequest> Fleet::take_held() {
  std::vector<HeldRequest> taken;
  for (HeldRequest& held : std::exchange(held_, {})) {
    taken.push_back({.request = std::move(held.request),
                     .arrived_ns = held.arrived_ns,
                     .moved = std::move(held.moved)});
  }
  return taken;
}

void Fleet::advance_succession(TimeNs now_ns) {
  succession_.advance(now_ns);
  if (const auto timeout_ns = succession_.take_timeout_ns()) {
    watch_.set_timeout(ReplicaId{0}, *timeout_ns);
    watch_.ended(ReplicaId{0}, now_ns);
  }
}

}  // namespace protean
