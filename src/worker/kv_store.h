#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "device/cpu/attention.h"
#include "device/cpu/memory.h"

namespace protean {

// The KV memory of one device, and the only place that knows where a block id lives. Block-major:
// [block][layer][slot of a KV head], so that a block is one piece (what a capacity change moves)
// and a run of heads within a layer, scales included, is one piece (what a TP change moves; AMOEBA
// section 3.1; cpu::KvLayer). Contents belong to the steps that write them.
class KvStore {
 public:
  // Refuses sizes that do not fit an address space.
  static Result<KvStore> create(const ModelSpec& spec, const KvForm& form);

  std::span<const cpu::KvLayer> layers() const { return layers_; }
  std::int64_t blocks() const { return blocks_; }
  int block_tokens() const { return layers_.front().block_tokens; }
  std::int64_t block_bytes() const { return layers_.front().block_stride_bytes; }
  std::int64_t bytes() const { return memory_.bytes(); }

 private:
  KvStore() = default;

  cpu::Region memory_;
  std::int64_t blocks_ = 0;
  std::vector<cpu::KvLayer> layers_;
};

}  // namespace protean
