#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "engine/engine.h"
#include "fleet/router.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/token_sink.h"

namespace protean {

// One replica of a fleet. The executor must outlive the fleet.
struct Member {
  EngineConfig engine;  // its ReplicaId is given by the fleet
  Executor* executor = nullptr;
};

// All replicas of a model: their engines and the router before them. Takes the events of all, each
// with its ReplicaId, and sends all outputs to one sink, each batch with its ReplicaId.
//
// An Arrival goes to the replica that the router chooses among those that would accept it. If all
// would refuse it, one of them refuses it. A request that waits in one replica moves to another
// that has room for it and is predicted to give its first token sooner. Outputs of one request are
// in order, and every Accepted is followed by exactly one Finished, whichever replicas the request
// was in (invariant 7). Has no thread, clock or queue. Single-threaded.
class Fleet : private TokenSink {
 public:
  // Requires a member.
  Fleet(RouterPolicy router, const std::vector<Member>& members, TokenSink& sink);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Tells the sink how each replica begins.
  void begin(TimeNs now_ns);

  // Handles an event. A Tick goes to the replicas that asked for one by now. A Cancel of a request
  // that is unknown or has ended is ignored.
  void handle(Event event);

  // Returns the time at which a Tick should be sent if no other event comes before; nothing if none
  // is needed.
  std::optional<TimeNs> next_deadline_ns() const;

  bool idle() const;
  std::size_t size() const { return engines_.size(); }
  Observation observe(ReplicaId replica) const { return at(replica).observe(); }

 private:
  Engine& at(ReplicaId replica) const {
    return *engines_.at(static_cast<std::size_t>(replica.value));
  }
  void on(Arrival& arrival, TimeNs now_ns);
  void tick(TimeNs now_ns);
  void spread_queue(TimeNs now_ns);
  void emit(OutputBatch batch) override;

  const RouterPolicy router_;
  TokenSink& sink_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Observation> seen_;                   // by replica, of its latest batch
  std::unordered_map<RequestId, ReplicaId> owner_;  // of requests that have not ended
  std::vector<ReplicaView> candidates_;             // a member, so that its memory is reused
  std::size_t turn_ = 0;
};

}  // namespace protean
