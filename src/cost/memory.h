#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/shards.h"

namespace protean {

// Bytes that a form needs, before anything is loaded. Matrices count as their kernels store them:
// outputs and inputs padded to multiples of 32, quantised ones with a scale for every 128 inputs of
// an output, and below 8 bits an offset too.

std::int64_t component_bytes(const ModelSpec& spec, Component component, Precision precision);
std::int64_t layer_bytes(const ModelSpec& spec, const LayerPrecision& precision);
std::int64_t layer_bytes(const ModelSpec& spec, Precision precision);  // of both halves

// The embedding table or the output projection, at a form's `embeddings`.
std::int64_t vocab_matrix_bytes(const ModelSpec& spec, Precision embeddings);

std::int64_t weight_bytes(const ModelSpec& spec, const Form& form);  // layers and what is around

// What a step of at most so many rows computes in, and of at most so many of its rows logits; f32.
// A device that holds shards (cost/shards.h) has besides what each of them adds to the rows.
std::int64_t activation_bytes(const ModelSpec& spec, std::int64_t rows, std::int64_t logit_rows,
                              const ShardRun& shards = {});

// All layers' keys and values of one token or block, with their scales.
std::int64_t kv_token_bytes(const ModelSpec& spec, KvPrecision precision);
std::int64_t kv_block_bytes(const ModelSpec& spec, const KvForm& kv);

}  // namespace protean
