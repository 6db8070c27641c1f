#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "contract/groups.h"
#include "fleet/fleet.h"
#include "ports/event.h"
#include "ports/kv_exchange.h"
#include "ports/token_sink.h"
#include "replica/replica_options.h"
#include "replica/workers.h"

namespace protean {

// How workers took the place of others, or why they did not.
struct Succeeded {
  Status how;
  // Devices that failed meanwhile: of the former workers if it went well, else of the others.
  std::optional<ReplicaFailure> failed;
};

// Workers that are to take the place of those that serve.
struct HandOver {
  // How it has ended, and the workers that do not serve any more or never will.
  struct Ended {
    Succeeded how;
    LoadedWorkers left;
  };

  LoadedWorkers by;  // after the switch, those that served before
  bool has_switched = false;
  std::vector<Event> kept;  // that an engine of `by` is to be told
  std::promise<Ended> ended;
};

// A fleet of replicas: a worker each, and one thread for all their engines. Takes events from the
// inbox and calls the sink on that thread. Inbox and sink must outlive it. The destructor waits for
// the running steps.
class Replicas : private TokenSink, private KvExchange {
 public:
  // Loads the replicas one after the other. If a policy may lower layers, variants that the cache
  // lacks are packed in the background from then on.
  static Result<std::unique_ptr<Replicas>> start(const ReplicaOptions& options,
                                                 const WeightSource& weights, Inbox& inbox,
                                                 TokenSink& sink);
  ~Replicas() override;

  // Has the only replica succeeded by another worker with other devices, another division among
  // them or other weights of the same model: its requests go on there with their KV, between two
  // steps. Returns when that has happened and the memory of the former worker is free again, which
  // is freed at low priority, or with the reason why the former worker serves on. The KV of both
  // has the same precision and the same size of blocks. If the devices of the former worker have
  // failed, requests are computed again. One thread calls this, what follows and the destructor.
  Succeeded succeed(LoadedWorkers by);

  // Says whether requests wait if the devices of the only replica fail, for succeed() or end(). If
  // they need not wait any more, they end.
  void await_successor(bool awaits);
  // Ends the thread of the engines, and returns the requests that wait, for take_in() of other
  // replicas of the model; a second call returns none. Nothing else may be called after it but the
  // destructor.
  std::vector<HeldRequest> end();
  // Takes requests that were accepted before. They come before those that are in the inbox.
  void take_in(std::vector<HeldRequest> requests);

  // Returns the bytes of pages that have memory, if the model trades memory with others; otherwise
  // 0.
  std::int64_t traded_bytes() const {
    return serving_.memory != nullptr ? serving_.workers->backed_bytes() : 0;
  }

 private:
  Replicas(const ReplicaOptions& options, const ModelSpec& spec, LoadedWorkers loaded, Inbox& inbox,
           TokenSink& sink);
  void run();
  void handle(Event event);
  void take_asked();
  void begin_succession();
  void look_at_succession();
  void end_succession(const Status& how);
  void emit(OutputBatch batch) override;
  void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) override;
  void succeeded() override;
  LoadedWorkers& holding(ReplicaId replica);
  ReplicaId successor() const { return ReplicaId{replicas_}; }

  Inbox& inbox_;
  TokenSink& sink_;
  const std::int32_t replicas_;
  std::int32_t numbers_ = 0;  // that workers have had, each another one
  // The workers outlive the fleet. A copy may still read from former workers that have failed, so
  // they go last.
  std::vector<LoadedWorkers> failed_;
  LoadedWorkers serving_;
  std::optional<HandOver> succession_;  // under way, on the fleet's thread
  Fleet fleet_;
  // What other threads ask of the fleet's.
  struct Asked {
    std::optional<HandOver> hand_over;
    std::vector<HeldRequest> requests;
    bool awaits_successor = false;
  };
  std::mutex mutex_;
  Asked asked_;  // guarded by the mutex
  std::thread thread_;
};

}  // namespace protean
