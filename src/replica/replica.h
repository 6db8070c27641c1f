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
#include "replica/model_options.h"
#include "replica/sizing.h"
#include "worker/cpu_worker.h"
#include "worker/layer_pages.h"

namespace protean {

using Inbox = BoundedQueue<Event>;

// What a replica is made of, beyond its model.
struct ReplicaOptions {
  ModelOptions model;
  Sizing sizing;
  std::optional<MorphConfig> morph;        // nothing: the form stays
  std::shared_ptr<VariantStore> variants;  // where weights then come from
};

// How a worker gets parts of a model out of a store, and what the store had to remark.
ReadComponent read_from(std::shared_ptr<VariantStore> variants);

// Reads what a worker will lower layers to first, in the order in which it will, if the memory that
// is free has room for it twice: else it would only drive out what is in use.
std::function<bool(const Pace& pace)> read_ahead_of(std::shared_ptr<const VariantStore> variants,
                                                    std::vector<SwapTarget> order,
                                                    Precision precision);

// One engine with its worker, running on a thread of its own: events in through the inbox, outputs
// out through the sink, which is called on that thread. Inbox and sink outlive it. The destructor
// waits for the step being computed.
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

// Nanoseconds of the steady clock, the time base of all events.
TimeNs steady_now_ns();

}  // namespace protean
