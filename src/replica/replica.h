#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "engine/engine.h"
#include "engine/morph_config.h"
#include "model/checkpoint.h"
#include "model/variant_store.h"
#include "ports/event.h"
#include "ports/token_sink.h"
#include "replica/fingerprint.h"
#include "replica/model_options.h"
#include "replica/sizing.h"
#include "worker/cpu_worker.h"
#include "worker/layer_pages.h"

namespace protean {

using Inbox = BoundedQueue<Event>;

// How to build a replica of a model.
struct ReplicaOptions {
  ModelOptions model;
  Sizing sizing;
  std::optional<MorphConfig> morph;        // nothing: the form never changes
  std::shared_ptr<VariantStore> variants;  // source of weights if the form may change
  StepCost step_cost;                      // see known_step_cost(); all 0: not known
};

// Returns the configuration of the engine that serves such a replica.
EngineConfig engine_config(const ReplicaOptions& options);

// Returns what a fingerprint of the replica's model has to know: every precision that its layers
// have or may be lowered to.
FingerprintOptions fingerprint_options(const ReplicaOptions& options);

// Returns a function that reads parts of a model from the store. It returns the store's remark.
ReadComponent read_from(std::shared_ptr<VariantStore> variants);

// Returns a function that reads ahead the variants that layers are lowered to first, in `order`. It
// reads nothing if less than twice their size is free, so that it evicts no page in use.
std::function<bool(const Pace& pace)> read_ahead_of(std::shared_ptr<const VariantStore> variants,
                                                    std::vector<SwapTarget> order,
                                                    Precision precision);

// One engine with its worker, on a thread of its own. Takes events from the inbox and calls the
// sink on that thread. Inbox and sink must outlive it. The destructor waits for the running step.
class Replica {
 public:
  static Result<std::unique_ptr<Replica>> start(const ReplicaOptions& options,
                                                const Checkpoint& checkpoint, Inbox& inbox,
                                                TokenSink& sink);
  ~Replica();

 private:
  Replica(const EngineConfig& config, std::unique_ptr<CpuWorker> worker, Inbox& inbox,
          TokenSink& sink);
  void run();

  Inbox& inbox_;
  std::unique_ptr<CpuWorker> worker_;
  Engine engine_;
  std::thread thread_;
};

// Returns the steady clock in nanoseconds, the time base of all events.
TimeNs steady_now_ns();

}  // namespace protean
