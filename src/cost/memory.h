#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"

namespace protean {

// These functions predict the bytes that a form needs. Matrices count as kernels store them:
// outputs and inputs padded to multiples of 32, and traits_of(storage).group_bytes for each group
// of inputs of an output.

std::int64_t component_bytes(const ModelSpec& spec, Component component, Precision precision);
// The bytes of a component's matrices alone, each of which begins on a line of 64 bytes.
std::int64_t matrices_bytes(const ModelSpec& spec, Component component, Precision precision);
std::int64_t layer_bytes(const ModelSpec& spec, const LayerPrecision& precision);
std::int64_t layer_bytes(const ModelSpec& spec, Precision precision);  // both halves alike

// Bytes of the embedding matrix or the LM head at precision `embeddings`.
std::int64_t vocab_matrix_bytes(const ModelSpec& spec, Precision embeddings);

std::int64_t weight_bytes(const ModelSpec& spec, const Form& form);  // all components

// The least number of buffers with which partial sums over `held` shards can be added in the fixed
// tree, shard after shard.
int partial_sums(int held);

// What a device of a group computes, as far as its buffers depend on it.
struct DeviceShare {
  int shards = 1;          // shards that each component is packed in
  int held = 1;            // the most shards of a component that the device holds
  bool exchanges = false;  // sums with other devices that hold shards of the same component
};

DeviceShare share_of(const Form& form, const Holding& holding);
// Returns the most that a device may come to compute when replicas are joined and split.
DeviceShare widest_share(const Form& form);

// Bytes of f32 buffers for steps of at most `rows` rows, `logit_rows` of them with logits.
std::int64_t activation_bytes(const ModelSpec& spec, std::int64_t rows, std::int64_t logit_rows,
                              const DeviceShare& share = {});

// Bytes of the keys and values of a token or a block in all layers, with their scales.
std::int64_t kv_token_bytes(const ModelSpec& spec, KvPrecision precision);
std::int64_t kv_block_bytes(const ModelSpec& spec, const KvForm& kv);
// Bytes of a block in one layer.
std::int64_t kv_layer_block_bytes(const ModelSpec& spec, const KvForm& kv);

}  // namespace protean
