#include "worker/cpu_worker.h"

#include <utility>

#include "base/check.h"

namespace protean {

Result<std::unique_ptr<CpuWorker>> CpuWorker::create(const WorkerOptions& options,
                                                     const Checkpoint& checkpoint,
                                                     const LoadProgress& progress,
                                                     StepDoneHandler done) {
  check(done != nullptr, "someone listens to finished steps");
  Result<std::unique_ptr<Rank>> rank = Rank::create(options, checkpoint, progress);
  if (!rank) {
    return rank.error();
  }
  return std::unique_ptr<CpuWorker>(new CpuWorker(std::move(*rank), std::move(done)));
}

CpuWorker::CpuWorker(std::unique_ptr<Rank> rank, StepDoneHandler done)
    : rank_(std::move(rank)),
      done_(std::move(done)),
      memory_(rank_->memory()),
      plans_(1),  // start() is bounded by the engine's steps in flight, not by this
      thread_([this] { run_steps(); }) {}

CpuWorker::~CpuWorker() {
  plans_.close();
  thread_.join();
}

void CpuWorker::start(StepPlan plan) {
  plans_.push(std::move(plan));
}

void CpuWorker::run_steps() {
  for (;;) {
    const std::vector<StepPlan> plans = plans_.pop_all();
    if (plans.empty()) {
      return;  // closed and drained
    }
    for (const StepPlan& plan : plans) {
      done_(rank_->run(plan));
    }
  }
}

}  // namespace protean
