#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "cost/group_cost.h"
#include "engine/morph_config.h"
#include "fleet/balancing.h"
#include "fleet/fleet.h"
#include "fleet/router.h"
#include "model/checkpoint.h"
#include "model/variant_store.h"
#include "ports/device_groups.h"
#include "ports/event.h"
#include "ports/kv_exchange.h"
#include "ports/token_sink.h"
#include "replica/fingerprint.h"
#include "replica/model_options.h"
#include "replica/shared_memory.h"
#include "replica/shared_turns.h"
#include "replica/sizing.h"
#include "worker/cpu_worker.h"
#include "worker/layer_pages.h"

namespace protean {

using Inbox = BoundedQueue<Event>;

// How to build the replicas of a model, which are all alike.
struct ReplicaOptions {
  ModelOptions model;
  Sizing sizing;                           // the size of each replica
  std::optional<MorphConfig> morph;        // each replica's; nothing: forms never change
  std::shared_ptr<VariantStore> variants;  // source of weights if the form may change
  GroupCost cost;  // of steps on one device and on several; all 0: not known
  RouterPolicy router = RouterPolicy::kFirstToken;
  MigratePolicy migrate = MigratePolicy::kOff;
  ScalePolicy scale = ScalePolicy::kOff;
  DropPolicy drop = DropPolicy::kOff;
  int holds_at_once = 8;                     // see GroupConfig::steps_at_once
  TimeNs scaler_after_ns = 10 * kNsPerS;     // see GroupConfig
  TimeNs device_timeout_ns = 0;              // see Member
  std::shared_ptr<ModelTurns> turns = {};    // null: no other model has another priority
  std::shared_ptr<ModelMemory> memory = {};  // that it trades with other models; null: none
  std::int64_t most_pages = 0;  // pages that a device may have later, if more than in the sizing
};

// Where weights are loaded from. See WorkerOptions for `await_turn`.
struct WeightSource {
  const Checkpoint& checkpoint;
  std::function<void()> await_turn = {};
};

// Returns true if the model may trade memory with others: a policy changes its form and its KV, and
// it is one replica. Replicas that may be joined count on each other's pages.
bool may_trade_memory(const ReplicaOptions& options);

// Returns true if the replicas may be joined and split again: there are several, on pages, of a
// model whose halves of a layer follow each other.
bool may_join(const ReplicaOptions& options);

// Returns the configuration of the engine that serves such a replica.
EngineConfig engine_config(const ReplicaOptions& options, const ModelSpec& spec);

// Returns the configuration of the engine that serves a group of such replicas with this form.
EngineConfig wide_engine_config(const ReplicaOptions& options, const ModelSpec& spec,
                                const Form& form);

// Returns how such replicas become groups, without the devices; nothing if they may not be joined.
std::optional<GroupConfig> group_config(const ReplicaOptions& options, const ModelSpec& spec);

// Returns what a fingerprint of the replica's model has to know: every precision that its layers
// have or may be lowered to.
FingerprintOptions fingerprint_options(const ReplicaOptions& options);

// Returns a function that reads parts of a model from the store. It returns the store's remark.
ReadComponent read_from(std::shared_ptr<VariantStore> variants);

// Leads from the threads of devices to an inbox until it is closed. A device that hangs may wake up
// when the inbox is gone, or belongs to another fleet. One that hangs while it pushes, such as when
// the thread that it has woken takes its processor, keeps no other from pushing.
class EventGate {
 public:
  explicit EventGate(Inbox& inbox) : inbox_(&inbox) {}
  void push(Event event);
  void close();

 private:
  std::shared_mutex mutex_;
  Inbox* inbox_;  // null once it is closed
};

// The workers of a fleet, whose events go through the gate. They can be joined if they have a
// fabric.
class Workers final : public KvExchange, public DeviceGroups {
 public:
  // `memory`, if the workers trade theirs, outlives them.
  Workers(std::shared_ptr<EventGate> gate, TimeNs device_timeout_ns,
          const ModelMemory::Lease* memory)
      : gate_(std::move(gate)), device_timeout_ns_(device_timeout_ns), memory_(memory) {}
  // Stops all workers before the first one is destroyed: copies read others' memory. If a device
  // was given up and still hangs, all are left behind with their memory. Devices that do not finish
  // within the timeout, which is without end if it is 0, are given up. Closes the gate.
  ~Workers() override;

  void add(std::unique_ptr<CpuWorker> worker) { workers_.push_back(std::move(worker)); }
  void in_background(BackgroundTask work) { workers_.front()->in_background(std::move(work)); }
  std::vector<Member> members(const EngineConfig& engine) const;  // one for each worker
  // Returns the bytes of their pages that have memory. Any thread may call.
  std::int64_t backed_bytes() const;
  // The replica has no requests.
  void rest(ReplicaId replica) { at(replica).rest(); }
  void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) override;

  void join(const std::vector<ReplicaId>& replicas) override;
  void unify(ReplicaId group) override { at(group).unify(); }
  void divide(ReplicaId group) override { at(group).divide(); }
  void part(ReplicaId group) override { at(group).part(); }
  void start(ReplicaId group, std::vector<StepPlan> plans) override {
    at(group).start(std::move(plans));
  }
  void keep(ReplicaId group, std::vector<std::vector<BlockId>> live) override {
    at(group).keep(std::move(live));
  }

 private:
  CpuWorker& at(ReplicaId replica) { return *workers_.at(static_cast<std::size_t>(replica.value)); }

  void give_up_what_hangs();

  const std::shared_ptr<EventGate> gate_;
  const TimeNs device_timeout_ns_;
  const ModelMemory::Lease* const memory_;
  std::vector<std::unique_ptr<CpuWorker>> workers_;
};

// A fleet of replicas: a worker each, and one thread for all their engines. Takes events from the
// inbox and calls the sink on that thread. Inbox and sink must outlive it. The destructor waits for
// the running steps.
class Replicas : private TokenSink {
 public:
  // Loads the replicas one after the other. If a policy may lower layers, variants that the cache
  // lacks are packed in the background from then on.
  static Result<std::unique_ptr<Replicas>> start(const ReplicaOptions& asked,
                                                 const WeightSource& weights, Inbox& inbox,
                                                 TokenSink& sink);
  ~Replicas() override;

  // Returns the bytes of pages that have memory, if the model trades memory with others; otherwise
  // 0. Any thread may call.
  std::int64_t traded_bytes() const {
    return parts_.memory != nullptr ? parts_.workers->backed_bytes() : 0;
  }

 private:
  struct Parts {
    std::unique_ptr<ModelMemory::Lease> memory;  // null: it trades none
    std::unique_ptr<Workers> workers;
  };
  Replicas(const ReplicaOptions& options, const ModelSpec& spec, Parts parts, Inbox& inbox,
           TokenSink& sink);
  void run();
  void emit(OutputBatch batch) override;

  Inbox& inbox_;
  TokenSink& sink_;
  const Parts parts_;  // outlive the fleet
  Fleet fleet_;
  std::thread thread_;
};

// Returns the steady clock in nanoseconds, the time base of all events.
TimeNs steady_now_ns();

}  // namespace protean
