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
#include "worker/layer_pages.h"
#include "worker/paced_thread.h"

namespace protean {

// Called on the worker's threads; must not destroy the worker.
struct MorphHandlers {
  std::function<void(MorphReady)> ready;
  std::function<void(MorphDone)> done;
};

// Fills pages with a component's weights at another precision in the background, and returns the
// pages of the old ones after the swap (MorphServe section 4.3). The thread that runs steps swaps
// pointers in between. Several swaps may be under way; they are filled in order. Does not own what
// it is given; the thread must be stopped before this is destroyed.
class LayerSwapper {
 public:
  struct Parts {
    cpu::PagePool* pool = nullptr;
    PacedThread* thread = nullptr;
    ModelSpec spec;
    Holding holding;  // of the device
    int shards = 1;   // of each component
    ReadComponent read;
    MorphHandlers handlers;
  };
  // A component's new weights, filled and not yet in use.
  struct Filled {
    SwapComponent step;
    ShardMemory memory;
  };

  explicit LayerSwapper(Parts parts) : parts_(std::move(parts)) {}

  // Executor's prepare() and abort(), on any thread.
  void prepare(MorphId id, const SwapComponent& swap);
  void abort(MorphId id);

  // On the thread that runs steps: take() returns the prepared weights, or nothing if there is no
  // swap with this id. give_back() then gets the replaced memory and ends the swap.
  std::optional<Filled> take(MorphId id);
  void give_back(MorphId id, ShardMemory memory);

 private:
  struct Swap {
    SwapComponent step;
    std::atomic<bool> aborted{false};
    bool ready = false;
    ShardMemory memory;
  };

  void fill(MorphId id, const std::shared_ptr<Swap>& swap);
  Result<FilledPages> fill_pages_of(const Swap& swap);

  const Parts parts_;
  std::mutex mutex_;
  std::unordered_map<MorphId, std::shared_ptr<Swap>> swaps_;  // neither taken nor aborted
};

}  // namespace protean
