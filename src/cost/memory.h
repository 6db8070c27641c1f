#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"

namespace protean {

// Bytes that a form needs, before anything is loaded. Matrices count as their kernels store them:
// outputs padded to whole panels of 32.

double weight_bits(Precision precision);  // payload of one weight

std::int64_t layer_bytes(const ModelSpec& spec, Precision precision);

// Embedding table, output projection (none when tied) and final norm.
std::int64_t outer_bytes(const ModelSpec& spec, Precision precision);

// All layers' keys and values of one token or block.
std::int64_t kv_token_bytes(const ModelSpec& spec, Precision precision);
std::int64_t kv_block_bytes(const ModelSpec& spec, const KvForm& kv);

}  // namespace protean
