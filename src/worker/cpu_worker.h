#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "contract/step.h"
#include "model/checkpoint.h"
#include "ports/executor.h"
#include "worker/device_worker.h"
#include "worker/fabric.h"
#include "worker/morph_answers.h"
#include "worker/rank.h"
#include "worker/route.h"

namespace protean {

// Returns true if every thread of all these devices can have a CPU of its own.
bool cpus_suffice(std::span<const WorkerDevice> devices);

// The Executor of a replica on one CPU device or a group of them. Puts each entry (step, commit,
// moves) into the queues of all devices that it concerns, so that all see the same order. A morph
// step is ready when it is on all of these devices, and a failure on one aborts it on all.
//
// The workers of replicas with a common fabric can be joined (ports/device_groups.h): the first one
// then leads the devices of all. The calls of a group's workers come from one thread.
class CpuWorker : public Executor {
 public:
  // Called once for each step, in order, on a device's thread; must not destroy the worker.
  using StepDoneHandler = std::function<void(StepResult)>;

  // Loads the model, device after device, and reports progress on the caller's thread. The
  // checkpoint need not outlive the call. Without pages, no morph step can be prepared.
  static Result<std::unique_ptr<CpuWorker>> create(const WorkerOptions& options,
                                                   const Checkpoint& checkpoint,
                                                   const LoadProgress& progress,
                                                   StepDoneHandler done,
                                                   MorphHandlers morph_handlers = {});

  // Finishes and reports the steps, commits and copies already started, and stops. Morph steps in
  // preparation are abandoned. Workers that may be joined are first all closed, then stopped.
  // stop() returns false if a device that was given up still hangs: then no worker that was joined
  // with this one may be destroyed, because the device's threads may wake up at any time and use
  // them.
  void close();
  [[nodiscard]] bool stop();
  // Waits for its devices after close(). Returns false if one has steps left by then.
  [[nodiscard]] bool ends_by(std::chrono::steady_clock::time_point until);
  ~CpuWorker() override;
  CpuWorker(const CpuWorker&) = delete;
  CpuWorker& operator=(const CpuWorker&) = delete;

  void start(StepPlan plan) override;
  void prepare(MorphId id, const MorphStep& step) override;
  void commit(MorphId id) override;
  void abort(MorphId id) override;
  void move_blocks(std::vector<BlockMove> moves) override;
  bool set_quota(std::int64_t pages) override;
  DeviceUse use() const override;
  bool holds_up() const override;
  bool awaits_turn() const override;
  std::optional<std::uint64_t> pieces_prepared() const override;
  std::vector<int> failing_devices() const override;
  void give_up() override;
  bool given_up() const { return devices_.front()->given_up(); }
  // The replica has no requests until the next step with tokens of it is started.
  void rest();

  // Copies KV blocks of another worker into this one's, after the steps started so far and before
  // any later one; then calls `done` on a device's thread, unless a device is given up. Each worker
  // stands alone or leads a unified group, and the source has computed a step since it became or
  // left a group. The source's blocks and what its devices hold must not change until `done`, and
  // this worker must be stopped before the source is destroyed.
  void copy_blocks(CpuWorker& source, const std::vector<BlockMove>& moves,
                   std::function<void()> done);

  // Does work on the first device's background thread if no other task waits: not more than the
  // share of the threads' time that copies may take while steps run, and without a limit while none
  // does. It ends with the worker.
  void in_background(BackgroundTask work) {
    devices_.front()->in_background(std::make_shared<BackgroundTask>(std::move(work)));
  }

  // DeviceGroups' calls, of the worker that leads. The others outlive the group.
  void join(const std::vector<CpuWorker*>& others);
  void unify();
  void divide();
  void part();
  void start(std::vector<StepPlan> plans);
  void keep(std::vector<std::vector<BlockId>> live) { live_ = std::move(live); }

  WorkerMemory memory() const;  // of its own devices
  // Returns the bytes of its own devices' pages that have memory. Any thread may call.
  std::int64_t backed_bytes() const;
  // Bytes of KV that the group's devices have moved in the background for changes.
  std::int64_t kv_bytes_moved_early() const;

 private:
  CpuWorker(const WorkerOptions& options, StepDoneHandler done, MorphHandlers handlers);
  Status add_devices(const WorkerOptions& options, const Checkpoint& checkpoint,
                     const LoadProgress& progress);
  void stand_alone(Form form);
  void follow(CpuWorker& leader, int further);
  void change(GroupChange change);
  void move_early(const std::shared_ptr<const GroupChange>& change);
  void commit_hold(MorphId id, const HoldShards& step);
  void share_moves(GroupChange::Hold& hold, const Formation& after);
  cpu::Moment stands_still(int layer) const;
  void prepare_on(const std::vector<int>& devices, MorphId id, const MorphStep& step);
  WantedWeights wanted_of(const MorphStep& step, int device) const;
  void on_ready(int device, MorphReady ready);
  void on_done(MorphId id, int device);
  void tell_done(MorphId id);
  std::int64_t lacking_pages(std::size_t device) const {
    return group().formation.form.group[device].lacking_pages;
  }
  bool has_pages() const { return devices_.front()->has_pages(); }

  const StepDoneHandler done_;
  const MorphHandlers handlers_;
  const bool moves_kv_early_;
  int kv_heads_of_shard_ = 0;
  std::shared_ptr<Fabric> fabric_;  // null for a device that is always alone; outlives the devices
  int first_device_ = 0;            // on the fabric
  MorphAnswers answers_;
  std::mutex order_;  // held while an entry goes into several queues
  std::vector<std::unique_ptr<DeviceWorker>> devices_;  // its own

  // A group that this worker leads or led: its own devices, or after a join those of others too.
  struct Group {
    std::vector<CpuWorker*> homes;    // by home
    std::vector<CpuWorker*> members;  // all whose devices are in the group
    std::vector<DeviceWorker*> devices;
    Formation formation;
    // Before unify(); empty if the homes were not unified.
    std::vector<CpuWorker*> apart;
    std::vector<Copy> homes_apart;
    std::vector<std::int64_t> blocks_apart;
    std::shared_ptr<const std::vector<KvPlaces>> places_apart;
    std::int64_t least_kv_blocks = 0;  // of unified homes
    std::shared_ptr<UseMeter> meter;   // while several devices serve as one
  };
  Group& group() { return groups_.back(); }
  const Group& group() const { return groups_.back(); }

  // Read by the devices' threads, which may still answer to what was aborted.
  std::atomic<CpuWorker*> leader_ = this;
  std::atomic<int> first_in_group_ = 0;  // of its own devices, among the leader's
  std::vector<Group> groups_;            // those that it joined with others, innermost first
  std::uint64_t number_ = 0;             // of the last entry that has one
  bool has_requests_ = false;            // as steps and rest() tell
  // Numbers of the last entries that use KV: of a step, which leaves one layer after the other, of
  // one that may use all layers until it ends, and of moves of a layer.
  struct Passed {
    std::uint64_t step = 0;
    std::uint64_t all = 0;
    std::unordered_map<int, std::uint64_t> layer;
  };
  Passed passed_;
  std::unordered_map<MorphId, MorphStep> steps_;  // prepared, neither committed nor aborted
  std::vector<std::vector<BlockId>> live_;        // by home, for the next commit
};

}  // namespace protean
