#pragma once

#include <cstdint>

#include "contract/model_spec.h"

namespace protean {

// A model is packed in as many shards as its form may ever have TP degrees (contract/holding.h,
// AMOEBA section 3.2). A shard of a layer has KV heads with the query heads that read them, neurons
// of the MLP, and a copy of the norms; a shard of the embeddings has rows of the vocabulary and a
// copy of the final norm.

// Returns the model as the kernels see one of `shards`: with a shard's heads, neurons and
// vocabulary rows. All shards have the same number of neurons, a multiple of the kernels' block or
// of a stored group, and of rows, a multiple of a panel; the last ones are padded with zeros. With
// one shard, returns the whole model.
ModelSpec shard_spec(const ModelSpec& spec, int shards);

struct IndexRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The neurons and the vocabulary rows of the model that a shard holds, without its padding.
IndexRange neurons_of(const ModelSpec& spec, int shard, int shards);
IndexRange vocab_rows_of(const ModelSpec& spec, int shard, int shards);

}  // namespace protean
