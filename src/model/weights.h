#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/holding.h"
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

struct MlpBiases {
  std::span<float> gate;
  std::span<float> up;
  std::span<float> down;
};

// The norms of what the halves of a layer add to the residual stream.
struct PostNorms {
  std::span<float> attention;
  std::span<float> mlp;
};

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
  cpu::PackedMatrix gate;  // no outputs if the MLP is not gated
  cpu::PackedMatrix up;
  cpu::PackedMatrix down;
  std::span<float> mlp_norm;
  std::span<float> attention_norm_bias;
  std::span<float> mlp_norm_bias;
  MlpBiases mlp_bias;
  PostNorms post_norm;
};

// The embedding matrix, LM head and final norm, or one shard of them with its rows of the
// vocabulary (cost/shards.h), in one contiguous piece of memory, which is borrowed. `output` and
// `embedding` share memory if they are tied.
struct EmbeddingWeights {
  cpu::PackedMatrix embedding;
  cpu::PackedMatrix output;
  std::span<float> final_norm;
  std::span<float> final_norm_bias;
  std::span<float> output_bias;
  std::span<float> positions;  // [max_context][hidden]
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

// Point matrices and vectors into 64-byte-aligned memory of component_size(). For a shard, `spec`
// is that of shard_spec().
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
// Fails if a weight has no quantised value or the checkpoint changed, and with kUnavailable if
// `pace` says stop.
Status load_component(const Checkpoint& checkpoint, const ComponentVariant& which,
                      std::byte* memory, const Pace& pace = {});

// The weights that a device holds of a model, ready to run.
struct ModelWeights {
  ModelWeights() = default;
  // Makes weights whose components must still be bound to memory.
  ModelWeights(const ModelSpec& spec, Holding holding, int shards = 1);

  int shards = 1;                            // shards that each component is packed in
  Holding holding;                           // the shards that steps use
  ModelSpec shard_spec;                      // a shard as kernels see it
  std::vector<EmbeddingWeights> embeddings;  // [shard]
  std::vector<LayerWeights> layers;          // [layer][shard]
  std::vector<cpu::Region> memory;           // memory of components owned here

  int layer_count() const { return static_cast<int>(holding.layers.size()); }
  const LayerWeights& shard(int layer, int shard) const { return layers[at(layer, shard)]; }
  LayerWeights& shard(int layer, int shard) { return layers[at(layer, shard)]; }
  std::int64_t bytes() const;  // size of the memory owned here

 private:
  std::size_t at(int layer, int shard) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(shards) +
           static_cast<std::size_t>(shard);
  }
};

// Called after each layer with the bytes packed so far.
using LoadProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

// Loads what the device holds of the embeddings into memory of their own. Layers must still be
// bound.
Result<ModelWeights> load_embeddings(const Checkpoint& checkpoint, Precision precision,
                                     Holding holding, int shards = 1);

// Binds what the device holds of a layer to memory of its own and loads it. Fails if memory is
// short or load_component() fails.
Status load_layer(ModelWeights& weights, const Checkpoint& checkpoint, int layer,
                  const LayerPrecision& precision);

// The precisions of a form, and what a device of its group holds.
struct HeldForm {
  std::span<const LayerPrecision> layers;
  Precision embeddings = Precision::kBf16;
  Holding holding;
  int shards = 1;
};

// Loads all that a device holds into memory of its own. Needs the memory of the packed weights and
// a few MiB.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const HeldForm& form,
                                  const LoadProgress& progress = {});

// The same for a device that holds the whole model.
Result<ModelWeights> load_weights(const Checkpoint& checkpoint,
                                  std::span<const LayerPrecision> layer_precision,
                                  Precision embeddings, const LoadProgress& progress = {});

}  // namespace protean
