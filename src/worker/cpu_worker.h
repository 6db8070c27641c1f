#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "contract/step.h"
#include "model/checkpoint.h"
#include "ports/executor.h"
#include "worker/rank.h"

namespace protean {

// The Executor of a replica on one CPU device: a rank and the thread that runs its steps in order.
class CpuWorker : public Executor {
 public:
  // Called once per step, in order, on the worker's thread; must not destroy the worker.
  using StepDoneHandler = std::function<void(StepResult)>;

  // Loads the model, reporting progress on the caller's thread. The checkpoint is not needed after.
  static Result<std::unique_ptr<CpuWorker>> create(const WorkerOptions& options,
                                                   const Checkpoint& checkpoint,
                                                   const LoadProgress& progress,
                                                   StepDoneHandler done);

  // Finishes the steps already started, reports them and stops.
  ~CpuWorker() override;
  CpuWorker(const CpuWorker&) = delete;
  CpuWorker& operator=(const CpuWorker&) = delete;

  void start(StepPlan plan) override;
  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}

  WorkerMemory memory() const { return memory_; }

 private:
  CpuWorker(std::unique_ptr<Rank> rank, StepDoneHandler done);
  void run_steps();

  const std::unique_ptr<Rank> rank_;  // used by the thread only
  const StepDoneHandler done_;
  const WorkerMemory memory_;
  BoundedQueue<StepPlan> plans_;
  std::thread thread_;  // last, so that all it uses is there
};

}  // namespace protean
