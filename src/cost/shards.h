#pragma once

#include <cstdint>

#include "contract/layer_precision.h"
#include "contract/model_spec.h"

namespace protean {

// A layer is packed in as many shards as the largest TP degree that its form may ever have. A
// device at TP t holds `largest / t` whole shards, so a change of degree moves shards and never
// cuts one (AMOEBA section 3.2). A shard has KV heads with the query heads that read them, neurons
// of the MLP, and a copy of the norms.

// The shards [first, first + count) of `of`.
struct ShardRun {
  int first = 0;
  int count = 1;
  int of = 1;  // a power of two that divides the KV heads

  bool whole() const { return of == 1; }
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};

// Returns the number of shards that a component is packed in if halves of layers have `shards`. The
// embedding matrix and LM head are one shard, which every device holds.
constexpr int shards_of(Component component, int shards) {
  return component == Component::kEmbeddings ? 1 : shards;
}

// Returns the model as the kernels see one of `shards`: with a shard's heads and neurons. All
// shards have the same number of neurons, a multiple of the kernels' block or of a stored group;
// the last ones are padded with zeros. With one shard, returns the whole model.
ModelSpec shard_spec(const ModelSpec& spec, int shards);

// The neurons of the model that a shard holds, without its padding.
struct NeuronRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
NeuronRange neurons_of(const ModelSpec& spec, int shard, int shards);

}  // namespace protean
