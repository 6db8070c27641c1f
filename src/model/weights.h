#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "cost/shards.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "model/checkpoint.h"

namespace protean {

// How a layer's matrices are stored at a precision; a quantised one shares scales among `group`
// inputs (StoredWeights).
cpu::WeightFormat weight_format(Precision precision, int group);

// Packs whole rows, at most 32, as a panel, rounding to nearest where the format is quantised
// (quant/round_to_nearest.h). Fails, leaving the panel as it was, where a weight has no quantised
// value.
Status pack_rows(const cpu::PackedMatrix& matrix, std::int64_t panel, std::span<const float> rows);

// One layer's weights, or one shard's of it (cost/shards.h), packed for the kernels, norms and
// biases (f32) included. Each half, attention or MLP with the norm before it, lies complete in one
// contiguous piece of memory that somebody else owns, and can have a precision of its own. What the
// model does not have is empty.
struct LayerWeights {
  LayerPrecision precision;
  cpu::PackedMatrix query;
  cpu::PackedMatrix key;
  cpu::PackedMatrix value;
  cpu::PackedMatrix attention_output;
  std::span<float> attention_norm;
  std::span<float> query_norm;
  std::span<float> key_norm;
  std::span<float> query_bias;
  std::span<float> key_bias;
  std::span<float> value_bias;
  std::span<float> attention_output_bias;
  cpu::PackedMatrix gate;
  cpu::PackedMatrix up;
  cpu::PackedMatrix down;
  std::span<float> mlp_norm;
};

// What is around the layers, in one contiguous piece of memory that somebody else owns. `output` is
// the same memory as `embedding` when they are tied.
struct EmbeddingWeights {
  cpu::PackedMatrix embedding;
  cpu::PackedMatrix output;
  std::span<float> final_norm;
};

// Which packed weights: a component of a model at a precision, whole or one shard of it.
struct ComponentVariant {
  int layer = 0;  // of the embeddings too
  Component component = Component::kAttention;
  Precision precision = Precision::kBf16;
  int shard = 0;
  int shards = 1;
  friend bool operator==(const ComponentVariant&, const ComponentVariant&) = default;
};

// Bytes from the start of a component to the end of its last piece, each begun on a 64-byte line.
// Of a shard's, where the spec is shard_spec()'s; so below.
std::int64_t component_size(const ModelSpec& spec, Component component, Precision precision);

// Point matrices and vectors into 64-byte-aligned memory of component_size().
void bind_half(LayerWeights& layer, const ModelSpec& spec, Component half, Precision precision,
               std::byte* memory);
void bind_embeddings(EmbeddingWeights& embeddings, const ModelSpec& spec, Precision precision,
                     std::byte* memory);

// Called between pieces of work on `bytes` more, on the thread that does it, which may sleep here
// to let others have the memory bus. False: stop.
using Pace = std::function<bool(std::int64_t bytes)>;

// Writes every byte of 64-byte-aligned memory of component_size(), so that equal weights are equal
// bytes. A checkpoint's own integers are packed as they are if they have the precision's bits and
// group, and shards begin with a group. Other weights are rounded to nearest
// (quant/round_to_nearest.h). Fails where a weight has no quantised value, and (kUnavailable) when
// told to stop. Reads panel by panel and gives file pages back on the way.
Status load_component(const Checkpoint& checkpoint, const ComponentVariant& which,
                      std::byte* memory, const Pace& pace = {});

// A model ready to run.
struct ModelWeights {
  ModelWeights() = default;
  // With components that are still to be bound to their owner's memory.
  ModelWeights(const ModelSpec& spec, int layers, const ShardRun& shards = {})
      : shards(shards),
        shard_spec(protean::shard_spec(spec, shards.of)),
        layers(static_cast<std::size_t>(layers) * static_cast<std::size_t>(shards.count)) {}

  EmbeddingWeights embeddings;
  ShardRun shards;                   // of each layer, that are here
  ModelSpec shard_spec;              // what each of them is to the kernels
  std::vector<LayerWeights> layers;  // [layer][shard]
  std::vector<cpu::Region> memory;   // of components that nobody else owns

  int layer_count() const { return static_cast<int>(layers.size()) / shards.count; }
  std::span<const LayerWeights> layer(int layer) const {
    const auto each = static_cast<std::size_t>(shards.count);
    return std::span(layers).subspan(static_cast<std::size_t>(layer) * each, each);
  }
  LayerWeights& shard(int layer, int index) {  // the index-th of those that are here
    return layers[static_cast<std::size_t>(layer) * static_cast<std::size_t>(shards.count) +
                  static_cast<std::size_t>(index)];
  }
  std::int64_t bytes() const;  // owned here
};

// Packed bytes that are ready, of those there will be. Called after each layer.
using LoadProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// With the embeddings in memory of their own, and layers that are still to be bound to theirs.
Result<ModelWeights> load_embeddings(const Checkpoint& checkpoint, Precision precision,
                                     const ShardRun& shards = {});

// Binds a layer's shards to memory of their own and loads them. Fails where memory is short or
// load_component() does.
Status load_layer(ModelWeights& weights, const Checkpoint& checkpoint, int layer,
                  const LayerPrecision& precision);

// The whole model in memory of its own. The process never needs more than the packed weights and a
// few MiB.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const LayerPrecision> layer_precision,
                                  Precision embeddings, const LoadProgress& progress = {},
                                  const ShardRun& shards = {});

}  // namespace protean
