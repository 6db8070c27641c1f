#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "control/arrival_rate.h"
#include "control/load.h"
#include "control/outlook.h"
#include "control/replica_demand.h"
#include "engine/engine.h"
#include "fleet/balancing.h"
#include "fleet/dropping.h"
#include "fleet/grouping.h"
#include "fleet/live_migration.h"
#include "fleet/router.h"
#include "fleet/station.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/kv_exchange.h"
#include "ports/token_sink.h"

namespace protean {

// One replica of a fleet. The executor must outlive the fleet.
struct Member {
  EngineConfig engine;  // its ReplicaId is given by the fleet
  Executor* executor = nullptr;
  // If nothing ends for so long although the executor has something to do, its devices have failed;
  // 0: they never fail.
  TimeNs device_timeout_ns = 0;
};

// All replicas of a model: their engines and the router before them. Takes the events of all, each
// with its ReplicaId, and sends all outputs to one sink, each batch with its ReplicaId.
//
// An Arrival goes to the replica that the router chooses among those that would accept it. If all
// would refuse it, it waits for a group of replicas that can hold it if the scale policy may form
// one, else one of them refuses it. A request that waits in one replica moves to another
// that has room for it and is predicted to give its first token sooner. A request that decodes
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

  bool idle() const;
  std::size_t size() const { return stations_.size(); }
  Observation observe(ReplicaId replica) const { return at(replica).observe(); }

 private:
  struct Migration {
    ReplicaId from;
    ReplicaId to;
    LiveMigration steps;
  };

  // For how long the executor of a replica's engine has something to do and nothing has ended, and
  // its devices have prepared nothing more.
  struct Watch {
    TimeNs timeout_ns = 0;                // 0: it is not watched
    TimeNs since_ns = -1;                 // -1: it has nothing to do
    std::optional<std::uint64_t> pieces;  // nothing: its devices prepare nothing
    TimeNs pieces_since_ns = -1;
  };
  // How often the fleet looks within a timeout whether devices still work.
  static constexpr int kLooksPerTimeout = 4;
  // To form groups: the policies ask for none before a time that is later after each failure.
  struct Attempts {
    TimeNs not_before_ns = 0;
    int failed_in_a_row = 0;
    std::uint64_t failures_seen = 0;  // of Grouping::failures()
  };
  // A replica or group in service whose load is weighed.
  struct Weighed {
    std::size_t index = 0;
    int replicas = 1;
    FormView view;
  };
  // A group that a policy formed.
  struct Formed {
    TimeNs since_ns = 0;
    bool for_long = false;  // for a request that no replica could hold
  };
  struct LongArrival {
    TimeNs at_ns = 0;
    std::int64_t blocks = 0;
  };
  // What `--scale joint` and `--drop joint` remember.
  struct Weighing {
    ArrivalRate arrivals;                   // of all requests
    std::deque<LongArrival> long_arrivals;  // of requests that need a group
    TimeNs next_ns = 0;
  };
  // Replicas in service, one of which gets the request that is being placed.
  struct Candidates {
    std::vector<ReplicaView> views;
    std::vector<std::size_t> replicas;  // one for each view
  };
  // What is remembered while queued requests lack KV.
  struct Shortage {
    DropVote vote;  // of `--drop released`
    ReplicaDemand demand;
    std::optional<ReplicasWanted> told;
  };
  struct ToMigrate {
    RequestId request;
    ReplicaId from;
    ReplicaId to;
  };
  // Requests that move between replicas with their KV.
  struct Moves {
    std::map<CopyId, Migration> running;
    std::deque<ToMigrate> queued;  // not begun yet
    std::uint64_t last_copy = 0;
    Migrations told;
  };

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
  bool scales() const { return blocks_of_.size() > 1; }
  bool queues_behind(std::int64_t blocks) const;
  bool hold(Arrival& arrival, TimeNs now_ns);
  void keep_waiting(Arrival& arrival, std::optional<ReplicaId> at, TimeNs now_ns);
  bool could_grow_for(const Request& request) const;
  std::vector<std::size_t> overlook_length(const Request& request);
  std::optional<std::vector<ReplicaId>> homes_for(const HeldRequest& held) const;
  bool homes_hold(std::size_t homes, std::int64_t blocks) const;
  void end_held(std::size_t index, FinishReason reason, TimeNs now_ns);
  enum class HandOver : std::uint8_t {
    kDone,
    kTooLate,  // a replica could hold the request, but not answer in time now
    kTooLong,  // no replica could hold it
  };
  HandOver hand_over(HeldRequest& held, TimeNs now_ns);
  bool serves_by_layers(std::size_t index) const;
  bool layers_return() const;
  bool closes(std::size_t index) const;
  void pass_over_closing();
  void pass_over_narrow();
  void serve_held(TimeNs now_ns);
  std::optional<std::size_t> hand_over_held(TimeNs now_ns);
  bool form_group(std::size_t index, TimeNs now_ns);
  Status scale(const std::vector<ReplicaId>& homes, const std::string& reason, TimeNs now_ns);
  void count_failures(TimeNs now_ns);
  void scale_down(TimeNs now_ns);
  std::vector<DropCandidate> drop_candidates() const;
  std::vector<DropHolding> drop_holdings(std::span<const DropCandidate> candidates,
                                         bool unequal) const;
  bool drop_copies(std::span<const DropCandidate> candidates, bool unequal, TimeNs now_ns);
  void drop_or_restore(TimeNs now_ns);
  bool keep_dropped(TimeNs now_ns);
  std::int64_t lacking_blocks() const;
  void drop_by_vote(TimeNs now_ns);
  void tell_replicas_wanted(TimeNs now_ns);
  struct Asked {
    RequestId id;
    std::int64_t prompt_tokens = 0;
    std::int64_t blocks = 0;  // of KV
  };
  void place(Arrival& arrival, TimeNs now_ns);
  void count_arrival(const Asked& asked, TimeNs now_ns);
  void remember_group(const std::vector<ReplicaId>& replicas, const Formed& formed);
  void forget_groups(const GroupWish& wish);
  void forget_parted();
  bool is_joint(GroupBy by) const;
  void weigh(TimeNs now_ns);
  bool regroups(TimeNs now_ns);
  std::ptrdiff_t long_arrivals_for(const Group& group) const;
  bool part_one(const std::vector<Weighed>& candidates, const Load& one, TimeNs now_ns);
  bool group_two(std::vector<Weighed>& candidates, const Load& one, TimeNs now_ns);
  std::optional<std::vector<Weighed>> two_to_weigh(std::vector<Weighed>& candidates) const;
  bool stays_together(ReplicaId replica, const std::vector<Weighed>& candidates, const Load& one,
                      TimeNs now_ns);
  bool wish(const GroupWish& wish, const std::string& reason, TimeNs now_ns);
  static Load load_of(std::span<const Weighed> candidates, const Load& one);
  Way as_homes(const Weighed& candidate, const Load& load, TimeNs now_ns) const;
  std::optional<Way> as_group(const Weighed& candidate, GroupBy by, const Load& load) const;
  double seconds_to_change(const FormView& view, const Load& load, int batches) const;
  double seconds_to_group(const FormView& view, const Load& load) const;
  double seconds_to_part(const FormView& view, GroupBy by, const Load& load) const;
  static std::vector<std::int64_t> group_blocks(const GroupConfig& config, std::size_t replicas);
  ScaleCandidate candidate_of(std::size_t index) const;
  std::int64_t blocks_needed(std::int64_t prompt, std::int64_t max_tokens) const;
  std::int64_t blocks_needed(const HeldRequest& held) const;
  bool in_service(std::size_t index) const;
  bool has_deadlines(std::size_t index) const;
  bool is_late(const StepDone& done, ReplicaId replica) const;
  void refuse(RequestId request, Error why, TimeNs now_ns);
  void await_survivors(Arrival& arrival, TimeNs now_ns);
  bool awaits_devices(std::size_t index) const;
  std::optional<std::uint64_t> pieces_prepared(std::size_t index) const;
  void watch(TimeNs now_ns);
  void watch_steps(std::size_t index, TimeNs now_ns);
  void watch_preparations(std::size_t index, TimeNs now_ns);
  void take_out_late(ReplicaId replica, TimeNs timeout_ns, TimeNs now_ns);
  void take_out(ReplicaId replica, const std::string& why, TimeNs now_ns);
  void forget_migrations(ReplicaId replica, TimeNs now_ns);
  int longest_tokens() const;
  void tick(TimeNs now_ns);
  std::optional<std::size_t> least_loaded_without_queue() const;
  void spread_queue(TimeNs now_ns);
  bool may_migrate(ReplicaId replica) const;
  std::string why_not(ReplicaId replica) const;
  bool begin_migrations(TimeNs now_ns);
  bool begin_migration(const ToMigrate& next, TimeNs now_ns);
  void balance(TimeNs now_ns);
  std::optional<RequestId> to_give(std::size_t giver, std::size_t taker) const;
  bool migrates(ReplicaId replica) const;
  void advance_migrations(TimeNs now_ns);
  Migrations migrations() const;
  std::shared_ptr<const Migrations> changed_migrations();
  void tell_migrations(TimeNs now_ns);
  OutputBatch batch_of(ReplicaId replica, TimeNs now_ns) const;
  void follow(CopyId id, std::optional<std::vector<BlockMove>> blocks);
  void emit(OutputBatch batch) override;

  const Dispatch dispatch_;
  TokenSink& sink_;
  KvExchange* const exchange_;
  // KV blocks of a group of 2^k replicas. One entry: the scale policy forms none.
  const std::vector<std::int64_t> blocks_of_;
  std::vector<Station> stations_;  // by replica
  std::vector<Watch> watches_;     // by replica
  Grouping grouping_;
  std::vector<Observation> seen_;                   // by replica, of its latest batch
  std::unordered_map<RequestId, ReplicaId> owner_;  // of requests that have not ended
  Candidates candidates_;                           // a member, so that its memory is reused
  std::size_t turn_ = 0;
  std::deque<HeldRequest> held_;  // accepted, for a group that can hold them
  Moves moves_;
  // Groups that policies other than `--drop paper` and `released` formed, by first replica and
  // number of replicas.
  std::map<std::pair<ReplicaId, std::size_t>, Formed> formed_;
  Attempts attempts_;
  Weighing weighing_;
  Shortage shortage_;
  TimeNs now_ns_ = 0;  // of the latest event
};

}  // namespace protean
