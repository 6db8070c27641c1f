#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/memory.h"

namespace protean {

// Returns the number of blocks that fit into `pages` pages of a device that holds the whole model.
inline std::int64_t kv_blocks_in(const ModelSpec& spec, const KvForm& kv, std::int64_t pages,
                                 std::int64_t page_bytes) {
  return pages / spec.layers * page_bytes / kv_layer_block_bytes(spec, kv);
}

}  // namespace protean
