#pragma once

#include <cstddef>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "contract/model_spec.h"
#include "device/cpu/attention.h"
#include "device/cpu/memory.h"

namespace protean {

// Keys and values of one sequence for one layer at a time, for text that is computed layer by
// layer. Blocks are in order, and every layer overwrites them before it reads them.
struct OneLayerKv {
  cpu::Region memory;
  cpu::KvLayer layer;
  std::vector<BlockId> blocks;

  static Result<OneLayerKv> create(const ModelSpec& spec, std::size_t tokens,
                                   cpu::KvElement element);
};

}  // namespace protean
