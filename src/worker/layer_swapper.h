#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "contract/model_spec.h"
#include "contract/morph.h"
#include "device/cpu/pages.h"
#include "ports/event.h"
#include "worker/kv_store.h"
#include "worker/layer_pages.h"
#include "worker/paced_thread.h"

namespace protean {

// Called on the worker's threads; must not destroy the worker.
struct MorphHandlers {
  std::function<void(MorphReady)> ready;
  std::function<void(MorphDone)> done;
};

// What a morph step needs before it is committed: weights of shards at a precision, and for
// HoldShards of attention room for KV.
struct WantedWeights {
  MorphStep step;
  SwapComponent component;  // which one, and its precision
  std::vector<int> shards;
  // The memory of another device that has a shard, from which it is copied; null: it is read.
  std::function<std::shared_ptr<const std::byte>(int shard)> peer;
  std::function<bool(int shard)> peer_is_sound;  // asked after the copy
  struct KvRoom {
    int layer = 0;
    int kv_heads = 0;
    std::int64_t places = 0;  // for blocks, in the layer's array
  };
  std::optional<KvRoom> kv;
};

// Fills pages with weights in the background, and returns the pages of those that they replace
// (MorphServe section 4.3, AMOEBA section 3.2). The thread that runs steps swaps pointers in
// between. Several morph steps may be under way; they are filled in order. Does not own what it is
// given; the thread must be stopped before this is destroyed.
class LayerSwapper {
 public:
  struct Setup {
    cpu::PagePool* pool = nullptr;
    PacedThread* thread = nullptr;
    ModelSpec spec;
    int shards = 1;  // of each component
    ReadComponent read;
    KvStore* kv = nullptr;
    MorphHandlers handlers;
  };
  // New weights, filled and not yet in use.
  struct Filled {
    WantedWeights wanted;
    ShardMemory memory;
  };

  explicit LayerSwapper(Setup setup) : setup_(std::move(setup)) {}

  // Executor's prepare() and abort(), on any thread.
  void prepare(MorphId id, WantedWeights wanted);
  void abort(MorphId id);
  // Ends the copies under way: the device has failed, and no answer of it is wanted.
  void give_up();
  // Returns true while a step is not ready.
  bool prepares();

  // On the thread that runs steps: take() returns the prepared weights, or nothing if there is no
  // morph step with this id. give_back() then gets the replaced memory, and the layer whose KV
  // array may be larger than it needs, and ends the step.
  std::optional<Filled> take(MorphId id);
  void give_back(MorphId id, ShardMemory memory, std::optional<int> kv_layer);

 private:
  struct Swap {
    WantedWeights wanted;
    std::atomic<bool> aborted{false};
    bool ready = false;
    ShardMemory memory;
  };

  void fill(MorphId id, const std::shared_ptr<Swap>& swap);
  Result<FilledPages> fill_pages_of(const Swap& swap);
  Status make_room(const Swap& swap);
  void trim(const std::optional<WantedWeights::KvRoom>& room);

  const Setup setup_;
  std::mutex mutex_;
  std::unordered_map<MorphId, std::shared_ptr<Swap>> swaps_;  // neither taken nor aborted
};

}  // namespace protean
