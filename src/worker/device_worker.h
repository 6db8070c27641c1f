#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <set>
#include <thread>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "contract/step.h"
#include "device/cpu/pages.h"
#include "model/checkpoint.h"
#include "ports/step_turn.h"
#include "worker/kv_resizer.h"
#include "worker/layer_swapper.h"
#include "worker/paced_thread.h"
#include "worker/rank.h"
#include "worker/use_meter.h"

namespace protean {

// A step of a group: a plan for each home, and its number among the entries of the group. `done` is
// called with each result by the device that draws it, and belongs to the homes of the step: the
// group may have parted before, if another device has failed.
struct GroupStep {
  std::uint64_t number = 0;
  std::shared_ptr<const std::vector<StepPlan>> plans;
  std::function<void(HomeResult)> done;
  std::shared_ptr<UseMeter> meter;  // null: the use of devices is not measured
};

// A GroupChange for the device with this index in the group.
struct DeviceChange {
  std::shared_ptr<const GroupChange> change;
  int device = 0;
};
class DeviceWorker;

// Copies KV blocks of devices of another group, then calls `done` if no device has lost memory.
struct KvCopy {
  struct Source {
    DeviceWorker* device = nullptr;
    std::shared_ptr<const KvLayout> layout;
    std::vector<SharedHeads> heads;
  };
  std::vector<Source> sources;
  std::vector<BlockMove> moves;
  // Devices of the fabric. Once one has failed, its group loses its KV, and the copy is called off.
  std::vector<int> groups;
  std::function<void()> done;
};

// Prepares a resize once the KV cache has the homes that a change before gives it.
struct PrepareResize {
  MorphId id;
  ResizeKv resize;
};

// What a device does between and within steps, in this order. All devices of a group are given the
// steps, changes, moves and copies in the same order.
using DeviceEntry =
    std::variant<GroupStep, MorphId, DeviceChange, PrepareResize, std::vector<BlockMove>, KvCopy>;

// Work that can wait. Ends early, with true, if `pace` says stop; is called again until it returns
// false.
using BackgroundTask = std::function<bool(const Pace& pace)>;

// One device of a worker: its rank, and the thread that takes the entries in order. With pages, a
// second thread prepares morph steps in the background; they are committed between two steps.
class DeviceWorker {
 public:
  struct Handlers {
    MorphHandlers morph;
    std::function<void(std::string why)> failed;  // see WorkerOptions::devices_failed
  };

  // Loads what the device holds, and reports progress on the caller's thread.
  static Result<std::unique_ptr<DeviceWorker>> create(const WorkerOptions& options,
                                                      const Checkpoint& checkpoint,
                                                      const LoadProgress& progress, RankPlace place,
                                                      Handlers handlers);

  // Finishes the entries that it was given, and stops. Morph steps in preparation are abandoned.
  ~DeviceWorker();
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  // The following three do nothing once the device is given up.
  void push(DeviceEntry entry);
  // Stops taking entries after those that it was given. A group closes all its devices before it
  // finishes one, because they wait for each other. No step waits for its turn any more.
  void close();
  // Waits until all entries and background work are done, after close(). Returns false if they are
  // not by then, or a second after now if the device is given up.
  [[nodiscard]] bool ends_by(std::chrono::steady_clock::time_point until);
  // Waits until all entries are run and all handlers have returned. Returns false if the device is
  // given up and still hangs after a second: then its threads go on, and neither it nor a device
  // that it reads from may be destroyed before another call has returned true.
  [[nodiscard]] bool finish();

  // Executor's prepare() and abort(), for a device that the step concerns.
  void prepare(MorphId id, WantedWeights wanted);
  void prepare(MorphId id, const ResizeKv& resize);
  void abort(MorphId id);
  // Moves the device's share of the KV of a change that was pushed, in the background, until the
  // device's own thread has done the rest. The layer's KV must stand still. Any thread may call.
  void move_early(std::shared_ptr<KvShare> share);
  // Does work in the background if no other task waits, see CpuWorker.
  void in_background(std::shared_ptr<BackgroundTask> work);
  // No request needs the device until it is given the next step.
  void rest();

  // Returns true while it has an entry to run, or a commit to report, and does not wait for another
  // device.
  bool holds_up() const;
  bool awaits_turn() const { return turn_ != nullptr && turn_->waits(); }
  // See Executor::pieces_prepared().
  std::optional<std::uint64_t> pieces_prepared();
  // The device has failed: it reports nothing more, runs no entry after the one that it may hang
  // in, and copies nothing after the piece that it may hang in.
  void give_up();
  bool given_up() const { return given_up_; }
  bool has_lost_memory() const { return pages_.pool != nullptr && pages_.pool->lost_memory(); }
  // Returns false once memory of the device is lost, after that was reported. What was read from
  // the device before may be wrong if this returns false afterwards. Any thread may call.
  bool sound();

  std::int64_t kv_bytes_moved_early() const { return kv_bytes_moved_early_; }

  // The device's rank, for a KvCopy of another device. It lives as long as this device.
  const Rank& rank() const { return *rank_; }
  // Returns true while it has an entry that may change where its KV lies: KvStore::layout() must
  // not be called then.
  bool layout_changes() const { return layout_changes_ > 0; }
  bool has_pages() const { return pages_.pool != nullptr; }
  std::int64_t pages() const { return pages_.pool->pages(); }
  // Sets how many pages it has, without those that it lacks. Fails if too few are free.
  Status set_quota(std::int64_t pages) { return pages_.pool->set_quota(pages); }
  std::int64_t free_pages() const { return pages_.pool->free_pages(); }
  // Returns the bytes of its pages that have memory. Any thread may call.
  std::int64_t backed_bytes() const {
    return has_pages() ? pages_.pool->backed_pages() * pages_.pool->page_bytes() : 0;
  }
  WorkerMemory memory() const { return memory_; }

 private:
  struct Pages {
    std::unique_ptr<cpu::PagePool> pool;
    std::shared_ptr<KvStore> kv;
  };
  struct Built {
    Pages pages;
    std::unique_ptr<Rank> rank;
    ModelSpec spec;
    WorkerOptions options;
    RankPlace place;
  };
  static Result<Pages> make_pages(const WorkerOptions& options, const ModelSpec& spec,
                                  RankPlace place, const cpu::MayGoOn& may_go_on);
  DeviceWorker(Built built, Handlers handlers);

  Handlers watched(Handlers handlers);
  void run_entries();
  void settle_background();
  void run(const GroupStep& step);
  void run(MorphId commit);
  void run(const DeviceChange& entry);
  void run(const PrepareResize& entry);
  void run(const std::vector<BlockMove>& moves);
  void run(const KvCopy& copy);

  const Pages pages_;                 // outlives all that follows
  const std::unique_ptr<Rank> rank_;  // used by the device's thread, and by copies of it
  const Handlers handlers_;
  const WorkerMemory memory_;
  const RankPlace place_;
  const std::shared_ptr<StepTurn> turn_;  // may be null
  std::atomic<bool> given_up_ = false;
  std::once_flag tells_loss_;
  std::atomic<int> unfinished_ = 0;      // entries, and commits until they are reported
  std::atomic<int> layout_changes_ = 0;  // entries that may change where KV lies
  std::binary_semaphore thread_ends_{0};
  // Changes of homes among the entries, and resizes that wait for them.
  std::mutex resizes_mutex_;
  int home_changes_ = 0;
  std::set<MorphId> waiting_resizes_;
  std::atomic<std::int64_t> kv_bytes_moved_early_ = 0;
  PacedThread background_;
  LayerSwapper swapper_;
  KvResizer resizer_;
  BoundedQueue<DeviceEntry> entries_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace protean
