#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "base/units.h"
#include "engine/engine.h"
#include "fleet/fleet.h"
#include "model/checkpoint.h"
#include "ports/device_groups.h"
#include "ports/event.h"
#include "replica/replica_options.h"
#include "replica/shared_memory.h"
#include "worker/cpu_worker.h"

namespace protean {

using Inbox = BoundedQueue<Event>;

// What is called while weights are loaded; both may be empty.
struct LoadHooks {
  std::function<void()> await_turn = {};  // see WorkerOptions
  LoadProgress told = {};                 // of each device, one after the other
};

// Where weights are loaded from.
struct WeightSource {
  const Checkpoint& checkpoint;
  LoadHooks hooks = {};
};

// Returns the steady clock in nanoseconds, the time base of all events.
TimeNs steady_now_ns();

// Leads from the threads of devices to an inbox, from when it is opened until it is closed. A
// device that hangs may wake up when the inbox is gone, or belongs to another fleet. One that hangs
// while it pushes, such as when the thread that it has woken takes its processor, keeps no other
// from pushing.
class EventGate {
 public:
  // Keeps the event until the gate is open.
  void push(Event event);
  // Passes on what was kept and what comes. Each replica is known by its own number and `first`.
  void open(Inbox& inbox, std::int32_t first);
  void close();

 private:
  void pass_on(Event event);

  std::shared_mutex mutex_;
  Inbox* inbox_ = nullptr;  // null unless it is open
  std::int32_t first_ = 0;
  bool closed_ = false;
  std::vector<Event> kept_;
};

// The workers of a fleet, whose events go through the gate. They can be joined if they have a
// fabric.
class Workers final : public DeviceGroups {
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
  // Returns a member for each worker.
  std::vector<Member> members(const EngineConfig& engine, const Form& form) const;
  // Opens the gate.
  void tell(Inbox& inbox, std::int32_t first) { gate_->open(inbox, first); }
  // Their memory stays when they end: a device that hangs may still read it.
  void stay() { stays_ = true; }
  // Returns true if a device was given up.
  bool have_failed() const;
  // Returns the bytes of their pages that have memory. Any thread may call.
  std::int64_t backed_bytes() const;
  // The replica has no requests.
  void rest(ReplicaId replica) { at(replica).rest(); }
  // Copies blocks of one of `source`, which may be this object, to one of these. See KvExchange.
  void copy(CopyId id, Workers& source, ReplicaId from, ReplicaId to,
            const std::vector<BlockMove>& blocks);

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
  std::atomic<bool> stays_ = false;
};

// A model in memory, whose workers wait for a fleet. Until then their events are kept.
struct LoadedWorkers {
  std::unique_ptr<ModelMemory::Lease> memory = {};  // null: it trades none; outlives the workers
  std::unique_ptr<Workers> workers = {};
  EngineConfig engine = {};  // of each replica
  Form form = {};            // in which each is loaded
  std::int32_t first = 0;    // the number of the first worker in events
};

// Loads the workers of all replicas, one after the other. If a policy may lower layers, variants
// that the cache lacks are packed in the background from then on.
Result<LoadedWorkers> load_workers(const ReplicaOptions& asked, const WeightSource& weights);

}  // namespace protean
