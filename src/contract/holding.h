#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/layer_precision.h"

namespace protean {

// A model is packed in shards: each component in as many as the largest TP degree that its form may
// ever have, so that a change of degree moves shards and never cuts one (AMOEBA section 3.2). A
// ShardRun is the shards [first, first + count) of a component. The count is 0 or a power of two
// that divides `first`, so that partial sums over a run are a subtree of the fixed order of sums.
struct ShardRun {
  int first = 0;
  int count = 0;

  bool empty() const { return count == 0; }
  int end() const { return first + count; }
  bool has(int shard) const { return shard >= first && shard < end(); }
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};

// Returns the aligned run of `count` shards around `run`; `run` if it is empty or no smaller.
ShardRun widened(const ShardRun& run, int count);

// Returns the number of shards of `run` that `had` does not have.
int new_shards(const ShardRun& run, const ShardRun& had);

// What one device has of each component of a model. A device that holds shards of a layer's
// attention also has the KV cache of their heads.
struct Holding {
  struct Layer {
    ShardRun attention;
    ShardRun mlp;

    const ShardRun& of(Component half) const {
      return half == Component::kAttention ? attention : mlp;
    }
    ShardRun& of(Component half) { return half == Component::kAttention ? attention : mlp; }
    bool empty() const { return attention.empty() && mlp.empty(); }
    friend bool operator==(const Layer&, const Layer&) = default;
  };

  DeviceId device;
  std::vector<Layer> layers;  // one per layer of the model
  ShardRun embeddings;        // vocabulary rows of the embedding matrix and of the LM head
  // Pages that the device has fewer than the budget of the group's devices, because its memory is
  // smaller. They count as pages that are in use.
  std::int64_t lacking_pages = 0;
  // KV blocks of the device's home, which are all that it has of a layer with several copies; 0: an
  // equal part.
  std::int64_t home_blocks = 0;

  // The run of a component. `layer` is ignored for the embeddings.
  const ShardRun& of(int layer, Component component) const {
    return component == Component::kEmbeddings
               ? embeddings
               : layers[static_cast<std::size_t>(layer)].of(component);
  }
  ShardRun& of(int layer, Component component) {
    return component == Component::kEmbeddings
               ? embeddings
               : layers[static_cast<std::size_t>(layer)].of(component);
  }
  friend bool operator==(const Holding&, const Holding&) = default;
};

// Returns a holding of all `shards` of everything.
Holding whole_model(int layers, int shards, DeviceId device);

// The devices, as indices into a group, that together hold every shard of a component once, in
// order of shards.
using Copy = std::vector<int>;

// Returns the copies of a component, the one with the lowest device first. A device is in at most
// one. Nothing if the runs do not make whole copies.
std::vector<Copy> copies_of(std::span<const Holding> group, int layer, Component component,
                            int shards);

}  // namespace protean
