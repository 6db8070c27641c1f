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

// Fills pages with a component's other weights beside running steps, and gives back the pages of
// the old ones (MorphServe section 4.3). Between the two, the thread that runs steps swaps
// pointers. Several swaps may be under way; they are filled one after the other, in order. Borrows
// what it is given; the thread must be stopped before this is destroyed.
class LayerSwapper {
 public:
  struct Parts {
    cpu::PagePool* pool = nullptr;
    PacedThread* thread = nullptr;
    ModelSpec spec;
    int shards = 1;  // of each half
    ReadComponent read;
    MorphHandlers handlers;
  };
  // A component's new weights, ready to be used.
  struct Filled {
    SwapComponent step;
    cpu::PageRange pages;
  };

  explicit LayerSwapper(Parts components) : parts_(std::move(components)) {}

  // On any thread. Executor's prepare() and abort().
  void prepare(MorphId id, const SwapComponent& swap);
  void abort(MorphId id);

  // On the thread that runs steps: what was prepared, if this is one of the swaps here; then the
  // pages it replaced, whose return is the end of the swap.
  std::optional<Filled> take(MorphId id);
  void give_back(MorphId id, cpu::PageRange pages);

 private:
  struct Swap {
    SwapComponent step;
    std::atomic<bool> aborted{false};
    bool ready = false;
    cpu::PageRange pages;
  };

  void fill(MorphId id, const std::shared_ptr<Swap>& swap);
  Result<FilledPages> fill_pages_of(const Swap& swap);

  const Parts parts_;
  std::mutex mutex_;
  std::unordered_map<MorphId, std::shared_ptr<Swap>> swaps_;  // neither taken nor aborted
};

}  // namespace protean
