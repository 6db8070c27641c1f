#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "device/cpu/pages.h"
#include "model/checkpoint.h"
#include "model/weights.h"

namespace protean {

// Fills memory of component_size() with packed weights, of a whole component or of one shard. Calls
// `pace` between pieces of a millisecond or less. Runs on a background thread, one call at a time.
// Returns a remark for operators about what went wrong without harm; usually empty.
using ReadComponent = std::function<Result<std::string>(
    const ComponentVariant& which, std::span<std::byte> memory, const Pace& pace)>;

// The memory of the shards of a component, in their order: each has pages of its own, so that a
// device can give up some of them. Pages return to the pool once no copy of another device reads
// them any more.
using ShardMemory = std::vector<std::shared_ptr<cpu::PageRange>>;

struct FilledPages {
  ShardMemory shards;
  std::string remark;  // of the ReadComponent
};

// Shards of a component that a device is to hold, and the precision that they are to have.
struct ShardedSwap {
  const ModelSpec& spec;
  SwapComponent component;
  std::vector<int> wanted;
  int shards = 1;  // of the component
};

// Returns the shards of a run that are not in `had`, which may be empty.
std::vector<int> shards_of(const ShardRun& run, const ShardRun& had = {});

// Takes pages and fills them. A failure returns all pages.
Result<FilledPages> fill_pages(cpu::PagePool& pool, const ShardedSwap& what,
                               const ReadComponent& read, const cpu::MayGoOn& may_go_on = {});

// The pages that hold each component of a model on a device. Belongs to the device's thread, but
// for find_shard().
class LayerPages {
 public:
  LayerPages() = default;
  // See Form::attention_kept.
  LayerPages(int layers, int attention_kept)
      : attention_kept_(attention_kept), halves_(static_cast<std::size_t>(layers)) {}

  // Points the shards here of the component's weights to `memory`, which then holds the old memory.
  void swap(ModelWeights& weights, const SwapComponent& component, ShardMemory& memory);

  // Sets the shards that the device holds of a component to `run`. `memory` has those that were not
  // here, at the precision that the component has; then it holds the memory of those that are not
  // any more.
  void hold(ModelWeights& weights, const SwapComponent& component, const ShardRun& run,
            ShardMemory& memory);

  // Returns the memory of a shard, which stays as it is while the result lives; null if the shard
  // is not here. Called on any thread: a device that fetches may ask before this one has come to an
  // earlier change of the component, and may still read when this one comes to a later one.
  std::shared_ptr<const std::byte> find_shard(const ModelWeights& weights,
                                              const ComponentVariant& which) const;

  std::int64_t bytes() const;

 private:
  ShardMemory& of(int layer, Component component) {
    return component == Component::kEmbeddings
               ? embeddings_
               : halves_.at(static_cast<std::size_t>(layer))[static_cast<std::size_t>(component)];
  }

  // Returns the shards that are here while the device holds `run`.
  ShardRun here(Component component, const ShardRun& run) const {
    return component == Component::kAttention ? widened(run, attention_kept_) : run;
  }

  int attention_kept_ = 0;
  // Held while what is here of a component changes.
  std::unique_ptr<std::mutex> changing_ = std::make_unique<std::mutex>();
  std::vector<std::array<ShardMemory, kLayerHalves.size()>> halves_;
  ShardMemory embeddings_;
};

}  // namespace protean
