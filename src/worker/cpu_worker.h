#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "contract/step.h"
#include "device/cpu/pages.h"
#include "model/checkpoint.h"
#include "ports/executor.h"
#include "worker/kv_resizer.h"
#include "worker/layer_swapper.h"
#include "worker/paced_thread.h"
#include "worker/rank.h"

namespace protean {

// The Executor of a replica on one CPU device: a rank and the thread that runs its steps in order.
// With pages, a second thread prepares morph steps in the background; they are committed between
// two steps.
class CpuWorker : public Executor {
 public:
  // Called once for each step, in order, on the worker's thread; must not destroy the worker.
  using StepDoneHandler = std::function<void(StepResult)>;

  // Loads the model, and reports progress on the caller's thread. The checkpoint need not outlive
  // the call. Without pages, no morph step can be prepared.
  static Result<std::unique_ptr<CpuWorker>> create(const WorkerOptions& options,
                                                   const Checkpoint& checkpoint,
                                                   const LoadProgress& progress,
                                                   StepDoneHandler done,
                                                   MorphHandlers morph_handlers = {});

  // Finishes and reports the steps, commits and copies already started, and stops. Morph steps in
  // preparation are abandoned.
  void stop();
  ~CpuWorker() override;
  CpuWorker(const CpuWorker&) = delete;
  CpuWorker& operator=(const CpuWorker&) = delete;

  void start(StepPlan plan) override;
  void prepare(MorphId id, const MorphStep& step) override;
  void commit(MorphId id) override;
  void abort(MorphId id) override;
  void move_blocks(std::vector<BlockMove> moves) override;

  // Copies KV blocks of another worker into this one's, after the steps started so far and before
  // any later one; then calls `done` on the worker's thread. The source's blocks must not change
  // until then, and this worker must be stopped before the source is destroyed.
  void copy_blocks(const CpuWorker& source, std::vector<BlockMove> moves,
                   std::function<void()> done);

  WorkerMemory memory() const { return memory_; }

 private:
  struct Pages {
    std::unique_ptr<cpu::PagePool> pool;
    std::shared_ptr<KvStore> kv;
  };
  struct Refuse {
    MorphReady answer;
  };
  struct Copy {
    const Rank* source = nullptr;
    std::vector<BlockMove> moves;
    std::function<void()> done;
  };
  // The worker's thread takes these in order.
  using Entry = std::variant<StepPlan, MorphId, std::vector<BlockMove>, Copy, Refuse>;

  struct Built {
    Pages pages;
    std::unique_ptr<Rank> rank;
    ModelSpec spec;
    WorkerOptions options;
  };
  static Result<Pages> make_pages(const WorkerOptions& options, const ModelSpec& spec);
  static Result<Built> build(const WorkerOptions& options, const Checkpoint& checkpoint,
                             const LoadProgress& progress);
  CpuWorker(Built built, StepDoneHandler done, MorphHandlers morph_handlers);

  void read_ahead();
  void run_entries();
  void run(const StepPlan& plan);
  void run(MorphId commit);
  void run(const std::vector<BlockMove>& moves);
  void run(const Copy& copy);
  void run(const Refuse& refuse);

  const Pages pages_;                 // outlives all that follows
  const std::unique_ptr<Rank> rank_;  // used by the worker's thread only
  const StepDoneHandler done_;
  const MorphHandlers morph_handlers_;
  const WorkerMemory memory_;
  const std::function<bool(const Pace& pace)> read_ahead_;
  PacedThread background_;
  LayerSwapper swapper_;
  KvResizer resizer_;
  BoundedQueue<Entry> entries_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace protean
