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

// Returns the kernel format of matrices at a precision. A quantised one shares a scale among
// `group` inputs (StoredWeights).
cpu::WeightFormat weight_format(Precision precision, int group);

// Packs at most 32 whole rows as a panel. Rounds to nearest if the format is quantised
// (quant/round_to_nearest.h). If a weight has no quantised value, fails and leaves the panel
// unchanged.
Status pack_rows(const cpu::PackedMatrix& matrix, std::int64_t panel, std::span<const float> rows);

// The weights of a layer or of one shard of it (cost/shards.h), packed for kernels, with norms and
// biases in f32. Each half (attention or MLP, with the norm before it) has a precision of its own
// and lies in one contiguous piece of memory, which is borrowed. Tensors that the model lacks are
// empty.
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

// The embedding matrix, LM head and final norm in one contiguous piece of memory, which is
// borrowed. `output` and `embedding` share memory if they are tied.
struct EmbeddingWeights {
  cpu::PackedMatrix embedding;
  cpu::PackedMatrix output;
  std::span<float> final_norm;
};

// Names packed weights: a component of a model at a precision, whole or one shard of it.
struct ComponentVariant {
  int layer = 0;  // 0 for the embeddings
  Component component = Component::kAttention;
  Precision precision = Precision::kBf16;
  int shard = 0;
  int shards = 1;
  friend bool operator==(const ComponentVariant&, const ComponentVariant&) = default;
};

// Returns the bytes of a component, whose tensors each begin on a 64-byte line. For a shard, pass
// the spec of shard_spec(), here and below.
std::int64_t component_size(const ModelSpec& spec, Component component, Precision precision);

// Point matrices and vectors into 64-byte-aligned memory of component_size().
void bind_half(LayerWeights& layer, const ModelSpec& spec, Component half, Precision precision,
               std::byte* memory);
void bind_embeddings(EmbeddingWeights& embeddings, const ModelSpec& spec, Precision precision,
                     std::byte* memory);

// Called on the working thread before each next `bytes` of work. It may sleep there, to leave
// memory bandwidth to other threads. Returns false to stop the work.
using Pace = std::function<bool(std::int64_t bytes)>;

// Packs a component into 64-byte-aligned memory of component_size() and writes every byte, so that
// equal weights give equal bytes. The checkpoint's own integers are packed unchanged if they have
// the precision's bits and group and shards begin with a group; other weights are rounded to
// nearest (quant/round_to_nearest.h). Reads panel by panel and releases file pages on the way.
// Fails if a weight has no quantised value, and with kUnavailable if `pace` says stop.
Status load_component(const Checkpoint& checkpoint, const ComponentVariant& which,
                      std::byte* memory, const Pace& pace = {});

// The weights of a model, or of a device's shards of it, ready to run.
struct ModelWeights {
  ModelWeights() = default;
  // Makes weights whose components must still be bound to memory.
  ModelWeights(const ModelSpec& spec, int layers, const ShardRun& shards = {})
      : shards(shards),
        shard_spec(protean::shard_spec(spec, shards.of)),
        layers(static_cast<std::size_t>(layers) * static_cast<std::size_t>(shards.count)) {}

  EmbeddingWeights embeddings;
  ShardRun shards;                   // the shards of each layer that are here
  ModelSpec shard_spec;              // a shard as kernels see it
  std::vector<LayerWeights> layers;  // [layer][shard]
  std::vector<cpu::Region> memory;   // of components owned here

  int layer_count() const { return static_cast<int>(layers.size()) / shards.count; }
  std::span<const LayerWeights> layer(int layer) const {
    const auto each = static_cast<std::size_t>(shards.count);
    return std::span(layers).subspan(static_cast<std::size_t>(layer) * each, each);
  }
  LayerWeights& shard(int layer, int index) {  // the index-th shard that is here
    return layers[static_cast<std::size_t>(layer) * static_cast<std::size_t>(shards.count) +
                  static_cast<std::size_t>(index)];
  }
  std::int64_t bytes() const;  // of memory owned here
};

// Called after each layer with the bytes packed so far.
using LoadProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// Loads the embeddings into memory of their own. Layers must still be bound.
Result<ModelWeights> load_embeddings(const Checkpoint& checkpoint, Precision precision,
                                     const ShardRun& shards = {});

// Binds a layer's shards to memory of their own and loads them. Fails if memory is short or
// load_component() fails.
Status load_layer(ModelWeights& weights, const Checkpoint& checkpoint, int layer,
                  const LayerPrecision& precision);

// Loads the whole model into memory of its own. Needs the memory of the packed weights and a few
// MiB.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const LayerPrecision> layer_precision,
                                  Precision embeddings, const LoadProgress& progress = {},
                                  const ShardRun& shards = {});

}  // namespace protean
