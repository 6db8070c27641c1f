#pragma once

#include <cstdint>

#include "contract/layer_precision.h"
#include "contract/model_spec.h"

namespace protean {

// A layer is packed in shards, as many as the largest TP degree that its form may ever have: a
// device at TP t holds `largest / t` whole ones, so a change of degree hands over shards and takes
// none apart (AMOEBA section 3.2). A shard is complete in itself: its KV heads with the query heads
// that read them, its neurons of the MLP, and the norms, which all shards have.

// The shards [first, first + count) of `of`.
struct ShardRun {
  int first = 0;
  int count = 1;
  int of = 1;  // a power of two that divides the KV heads

  bool whole() const { return of == 1; }
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};

// How many a component is packed in, where halves are in `shards`: whoever has some of the layers'
// has all of the embeddings.
constexpr int shards_of(Component component, int shards) {
  return component == Component::kEmbeddings ? 1 : shards;
}

// What one of `shards` is to the kernels: the model with a shard's heads and neurons. Neurons are
// padded with zeros to as many in each shard, a multiple of what kernels and stored groups take at
// once, so that all shards have one size. The whole model where there is one shard.
ModelSpec shard_spec(const ModelSpec& spec, int shards);

// The neurons of the model that a shard holds; behind them its padding.
struct NeuronRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
NeuronRange neurons_of(const ModelSpec& spec, int shard, int shards);

}  // namespace protean
