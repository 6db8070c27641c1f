#pragma once

#include "contract/configuration.h"
#include "contract/model_spec.h"

namespace protean {

// Returns the sizes of the model that structured pruning leaves, an ordinary model with fewer query
// heads and neurons; the model itself if nothing is removed by structure. Every layer loses
// `percent` of the weights of its matrices:
//   - query heads: the same share of each KV head's; if each KV head has one, whole heads, down to
//     the nearest multiple of 8, so that devices can still share them
//   - neurons: what is left to remove, in blocks of 32
ModelSpec pruned_spec(const ModelSpec& spec, const Pruning& pruning);

}  // namespace protean
