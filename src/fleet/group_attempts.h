#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "fleet/grouping.h"

namespace protean {

// When policies may ask for groups: after a failure not for a while, which is longer after each in
// a row. Says which failures are attempts to form the group that held requests wait for.
class GroupAttempts {
 public:
  bool may_ask(TimeNs now_ns) const { return now_ns >= not_before_ns_; }
  // The time before which no policy may ask.
  TimeNs not_before_ns() const { return not_before_ns_; }
  // A wish was refused.
  void refused(TimeNs now_ns) { not_before_ns_ = now_ns + kNsPerS; }
  // A change has failed. While no policy may ask, it was asked for before, and the pause stays.
  void failed(TimeNs now_ns);

  // A group of these replicas is to form for requests that are held `at` a replica, or anywhere.
  void asked(const std::vector<ReplicaId>& replicas, std::optional<ReplicaId> at) {
    awaited_ = {.replicas = replicas, .at = at};
  }
  void held_anywhere() { awaited_.at.reset(); }
  // Returns true if the failure is one for which held requests have waited: the first of the change
  // that was asked for them, and each that leaves stuck a change that they wait for.
  bool counts(const Grouping::Failure& failure);
  // Returns true if a failure that counts concerns a request that is held `at` a replica, or
  // anywhere. A stuck change keeps all from forming groups.
  bool concerns(const Grouping::Failure& failure, std::optional<ReplicaId> at) const {
    return failure.stuck || at == awaited_.at || (at && will_have(*at));
  }
  // Forgets the group that was asked for if its replicas do not change any more.
  void forget_ended(const Grouping& grouping);

 private:
  static constexpr int kMostDoublings = 5;  // of a pause of 1 s, to 32 s

  // The group that was asked for held requests, while it forms.
  struct Awaited {
    std::vector<ReplicaId> replicas = {};
    std::optional<ReplicaId> at = {};
    bool failed = false;
  };

  bool awaits(const Grouping::Failure& failure) const;
  bool will_have(ReplicaId replica) const {
    return std::ranges::find(awaited_.replicas, replica) != awaited_.replicas.end();
  }

  TimeNs not_before_ns_ = 0;
  int failed_in_a_row_ = 0;
  Awaited awaited_;
};

}  // namespace protean
