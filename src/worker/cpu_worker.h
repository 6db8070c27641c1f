#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "contract/step.h"
#include "model/checkpoint.h"
#include "ports/executor.h"
#include "worker/device_worker.h"
#include "worker/group.h"
#include "worker/morph_answers.h"
#include "worker/rank.h"

namespace protean {

// The Executor of a replica on one CPU device or a group of them. Puts each entry (step, commit,
// moves) into the queues of all devices that it concerns, so that all see the same order. A morph
// step is ready when it is on all of these devices, and a failure on one aborts it on all.
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

  // Copies KV blocks of a worker with an equal group into this one's, after the steps started so
  // far and before any later one; then calls `done` on a device's thread. The source's blocks must
  // not change until then, and this worker must be stopped before the source is destroyed.
  void copy_blocks(const CpuWorker& source, const std::vector<BlockMove>& moves,
                   std::function<void()> done);

  WorkerMemory memory() const;  // of all devices

 private:
  CpuWorker(Form form, MorphHandlers handlers);
  Status add_devices(const WorkerOptions& options, const Checkpoint& checkpoint,
                     const LoadProgress& progress, const StepDoneHandler& done);
  void on_ready(int device, MorphReady ready);
  void on_done(MorphId id);
  bool has_pages() const { return devices_.front()->has_pages(); }

  const Form form_;  // at the start; who holds what does not change
  const MorphHandlers handlers_;
  std::unique_ptr<Group> group_;  // null for one device; outlives the devices
  MorphAnswers answers_;
  std::mutex order_;  // held while an entry goes into several queues
  std::vector<std::unique_ptr<DeviceWorker>> devices_;
};

}  // namespace protean
