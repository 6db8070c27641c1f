#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "control/replica_demand.h"
#include "engine/engine.h"
#include "fleet/balancing.h"
#include "fleet/device_watch.h"
#include "fleet/formed_groups.h"
#include "fleet/group_attempts.h"
#include "fleet/group_dropping.h"
#include "fleet/group_scaling.h"
#include "fleet/grouping.h"
#include "fleet/held_request.h"
#include "fleet/live_migrations.h"
#include "fleet/router.h"
#include "fleet/scaling.h"
#include "fleet/station.h"
#include "fleet/succession.h"
#include "fleet/weighing.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/kv_exchange.h"
#include "ports/token_sink.h"

namespace protean {

// All replicas of a model: their engines and the router before them. Takes the events of all, each
// with its ReplicaId, and sends all outputs to one sink, each batch with its ReplicaId.
//
// An Arrival goes to the replica that the router chooses among those that would accept it. If all
// would refuse it and the scale policy may form a group that can hold it, it waits for that group.
// Otherwise one of them refuses it. A request that waits in one replica moves to another that has
// room for it and is predicted to give its first token sooner. A request that decodes
// moves with its KV if an operator asks for it, or if the policy finds its replica short of KV and
// another one not; either may be a group. Outputs of one request are in order, and every
// Accepted is followed by exactly one Finished, whichever replicas the request was in (invariant
// 7). Replicas can become one group and part again while requests go on (Regrouping); a group
// serves under the id of its first replica.
//
// A replica whose devices fail goes out of service. Its requests go on in other replicas, where
// their KV is computed again from their tokens, and wait in the fleet until one can hold them. A
// group that such a replica is in parts without a step; the others serve again once they have
// fetched what they dropped (KunServe section 4.4), and requests that arrive before wait for them.
// The requests of a replica that is alone may wait for other devices: await_successor().
// Has no thread, clock or queue. Single-threaded.
class Fleet : private TokenSink {
 public:
  // Requires a member. The KV blocks of all members have the same size. Without an exchange, which
  // must outlive the fleet, requests that decode stay where they are.
  Fleet(Dispatch dispatch, const std::vector<Member>& members, TokenSink& sink,
        KvExchange* exchange = nullptr, GroupConfig groups = {});
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

  // Chooses up to `requests` requests that decode in one replica, in the order of
  // Scheduler::all_decoding(), to move to another, a few at a time. Returns how many were chosen.
  // Each may still stay, if it ends before or the other replica has no room for it.
  Result<int> migrate(ReplicaId from, ReplicaId to, int requests, TimeNs now_ns);

  // Lets another executor, with an engine of its own, take the place of the only replica's with all
  // requests and their KV, while they go on (Succession). Until the switch, `as`, which names no
  // replica, names its executor in events and for the exchange. Its KV has the same precision and
  // tokens in a block. Fails if the fleet has several replicas, no exchange or devices that can
  // join, or if a request could never run there. If its devices have failed, the switch is at once,
  // and requests that have waited for it are computed again.
  Status succeed(const Member& by, ReplicaId as, TimeNs now_ns);
  // Returns how a succession has ended, once. On failure the replica goes on as it was, and the
  // executor that was to succeed it is not called any more.
  std::optional<Status> take_succeeded() { return succession_.take_ended(); }
  // Returns the failure of devices that has ended that succession, once: of the former's if it
  // ended well, else of those that were to succeed.
  std::optional<ReplicaFailure> take_failed() { return succession_.take_failed(); }

  // Says whether requests wait if the devices of the only replica fail, and those that arrive
  // then: for succeed(), or for another fleet, which goes on with them. If they need not wait any
  // more, they end with the next event.
  void await_successor(bool awaits) { succession_.await(awaits); }
  // Takes all requests that wait, of which no client is told.
  std::vector<HeldRequest> take_held();
  // Takes requests that another fleet of this model has accepted. Their KV is computed again.
  void hold(std::vector<HeldRequest> requests, TimeNs now_ns);

  bool idle() const;
  std::size_t size() const { return stations_.size(); }
  Observation observe(ReplicaId replica) const { return at(replica).observe(); }

 private:
  static std::size_t index_of(ReplicaId replica) { return static_cast<std::size_t>(replica.value); }
  Engine& at(ReplicaId replica) const { return *stations_.at(index_of(replica)).engine; }
  void on(Arrival& arrival, TimeNs now_ns);
  void on(const Cancel& cancel, TimeNs now_ns);
  void on(const BlocksCopied& copied, TimeNs now_ns);
  void on(const DevicesFailed& failed, ReplicaId replica, TimeNs now_ns);
  void on(const WantMigration& want, ReplicaId from, TimeNs now_ns);
  void on(const WantGroups& want, TimeNs now_ns);
  void on(WantForm& want, ReplicaId replica, TimeNs now_ns);
  void on(const VariantsPacked& packed, TimeNs now_ns);
  void regroup(TimeNs now_ns);
  void weigh(TimeNs now_ns);
  void place(Arrival& arrival, TimeNs now_ns);
  bool accepted(RequestId request) const;
  void keep_waiting(Arrival& arrival, std::optional<ReplicaId> at, TimeNs now_ns);
  void end_held(std::size_t index, FinishReason reason, TimeNs now_ns);
  enum class HandOver : std::uint8_t {
    kDone,
    kTooLate,  // a replica could hold the request, but not answer in time now
    kTooLong,  // no replica could hold it
  };
  HandOver hand_over(HeldRequest& held, TimeNs now_ns);
  void serve_held(TimeNs now_ns);
  std::optional<std::size_t> hand_over_held(TimeNs now_ns);
  bool form_group(std::size_t index, TimeNs now_ns);
  Status ask_for_held(std::size_t index, const GroupWish& wish, TimeNs now_ns);
  Status ask(const GroupWish& wish, const std::string& reason, const HeldRequest* held,
             TimeNs now_ns);
  void count_attempt(const Grouping::Failure& failure);
  void forget_formed();
  void count_failures(TimeNs now_ns);
  void scale_down(TimeNs now_ns);
  void drop(TimeNs now_ns);
  std::int64_t lacking_blocks() const;
  void tell_replicas_wanted(TimeNs now_ns);
  bool in_service(std::size_t index) const {
    return grouping_.in_service(ReplicaId{static_cast<std::int32_t>(index)});
  }
  bool is_late(const StepDone& done, ReplicaId replica) const;
  void refuse(RequestId request, Error why, TimeNs now_ns);
  void await_survivors(Arrival& arrival, TimeNs now_ns);
  void watch(TimeNs now_ns);
  std::vector<int> failing_devices(ReplicaId replica) const;
  void take_out(ReplicaFailure failure);
  void advance_succession(TimeNs now_ns);
  void tick(TimeNs now_ns);
  std::optional<std::size_t> least_loaded_without_queue() const;
  void spread_queue(TimeNs now_ns);
  std::string why_not(ReplicaId replica) const;
  void follow_moved(const std::vector<std::pair<RequestId, ReplicaId>>& moved);
  void tell_migrations(TimeNs now_ns);
  OutputBatch batch_of(ReplicaId replica, TimeNs now_ns) const;
  void emit(OutputBatch batch) override;

  const Dispatch dispatch_;
  TokenSink& sink_;
  std::vector<Station> stations_;  // by replica
  Grouping grouping_;
  std::vector<Observation> seen_;  // by replica, of its latest batch
  Succession succession_;
  std::unordered_map<RequestId, ReplicaId> owner_;  // of requests that have not ended
  RouteCandidates candidates_;                      // a member, so that its memory is reused
  std::size_t turn_ = 0;
  std::deque<HeldRequest> held_;  // accepted, for a group that can hold them
  FormedGroups formed_;
  GroupScaling scaling_;
  LiveMigrations migrations_;
  DeviceWatch watch_;
  Weighing weighing_;
  GroupAttempts attempts_;
  GroupDropping dropping_;
  ReplicaDemand demand_;  // for KV that queued requests lack
  std::optional<ReplicasWanted> told_replicas_;
  TimeNs now_ns_ = 0;  // of the latest event
};

}  // namespace protean
