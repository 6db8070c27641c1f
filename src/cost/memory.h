#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/shards.h"

namespace protean {

// These functions predict the bytes that a form needs. Matrices count as kernels store them:
// outputs and inputs padded to multiples of 32, and traits_of(storage).group_bytes for each group
// of inputs of an output.

std::int64_t component_bytes(const ModelSpec& spec, Component component, Precision precision);
std::int64_t layer_bytes(const ModelSpec& spec, const LayerPrecision& precision);
std::int64_t layer_bytes(const ModelSpec& spec, Precision precision);  // of both halves

// Bytes of the embedding matrix or the LM head at precision `embeddings`.
std::int64_t vocab_matrix_bytes(const ModelSpec& spec, Precision embeddings);

std::int64_t weight_bytes(const ModelSpec& spec, const Form& form);  // all components

// Bytes of f32 buffers for steps of at most `rows` rows, `logit_rows` of them with logits. A device
// that holds several shards (cost/shards.h) has a buffer for the sum of each in addition.
std::int64_t activation_bytes(const ModelSpec& spec, std::int64_t rows, std::int64_t logit_rows,
                              const ShardRun& shards = {});

// Bytes of the keys and values of a token or a block in all layers, with their scales.
std::int64_t kv_token_bytes(const ModelSpec& spec, KvPrecision precision);
std::int64_t kv_block_bytes(const ModelSpec& spec, const KvForm& kv);

}  // namespace protean
