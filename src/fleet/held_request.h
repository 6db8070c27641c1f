#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/request.h"
#include "engine/live_request.h"
#include "ports/token_sink.h"

namespace protean {

// A request that was accepted and is in no replica. It waits for a group that can hold it, or its
// replica's devices have failed and it waits for others.
struct HeldRequest {
  Request request;
  TimeNs arrived_ns = 0;
  std::optional<MovedRequest> moved = {};  // instead of `request`, if it was in a replica before
  std::optional<ReplicaId> at = {};        // the replica whose group must hold it; nothing: any
  int failed_attempts = 0;                 // attempts that failed to form the group it waits for
  std::string latest_failure = {};
  std::string refusal = {};                            // why nothing can serve it; it ends
  std::vector<std::vector<ReplicaId>> asked_for = {};  // groups that were to hold it, each once

  const Request& asks() const { return moved ? moved->sequence->asks : request; }
  std::int64_t prompt_tokens() const {
    return moved ? moved->sequence->prompt_tokens : std::ssize(request.prompt);
  }
  // Other weights of its model serve from now on. If it has tokens already, which these would not
  // have given, it is to end with that reason.
  void weights_replaced();
  // The time at which it ends without having begun; negative: never.
  TimeNs expires_ns() const;
  // Returns its end, without a failure.
  Finished ended(FinishReason reason, TimeNs now_ns) const;
};

}  // namespace protean
