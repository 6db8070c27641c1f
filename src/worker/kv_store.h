#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "device/cpu/attention.h"
#include "device/cpu/memory.h"
#include "device/cpu/pages.h"

namespace protean {

// The KV memory of one device, and the only place that knows where a block id lives. Block-major:
// [block][layer][slot of a KV head], so that a block is one piece (what a capacity change moves)
// and a run of heads within a layer, scales included, is one piece (what a TP change moves; AMOEBA
// section 3.1; cpu::KvLayer). Contents belong to the steps that write them.
//
// On pages the number of blocks can change beside steps (MorphServe section 4.4): addresses are
// reserved for all that the pool could ever hold, so a block never moves by itself and the kernels
// see no difference. grow() and shrink() are for one thread; blocks() may be read by any.
class KvStore {
 public:
  // In memory of its own, touched as steps write to it; its size is for life. Both refuse sizes
  // that do not fit an address space.
  static Result<std::unique_ptr<KvStore>> create(const ModelSpec& spec, const KvForm& form);
  // On pages of the pool, which outlives it.
  static Result<std::unique_ptr<KvStore>> create(const ModelSpec& spec, const KvForm& form,
                                                 cpu::PagePool& pool);

  std::span<const cpu::KvLayer> layers() const { return layers_; }
  std::int64_t blocks() const { return blocks_.load(std::memory_order_acquire); }
  int block_tokens() const { return layers_.front().block_tokens; }
  std::int64_t block_bytes() const { return layers_.front().block_stride_bytes; }
  std::int64_t bytes() const { return memory_.bytes() + range_.bytes(); }

  // Blocks at the end, published once their memory is there. A failure changes nothing
  // (cpu::PageRange::attach).
  Status grow(std::int64_t blocks, const cpu::MayGoOn& may_go_on = {});

  // From now on there are only so many. Their memory stays until shrink().
  void limit(std::int64_t blocks);
  // Gives back the pages that no published block needs.
  void shrink();

  // Copies a block's part `part` of `parts`, about equal ones.
  void copy(const BlockMove& move, std::int64_t part, std::int64_t parts) const;

 private:
  KvStore() = default;
  void lay_out(const ModelSpec& spec, const KvForm& form, std::byte* base);
  std::int64_t pages_for(std::int64_t blocks) const;

  cpu::Region memory_;
  cpu::PageRange range_;
  std::int64_t page_bytes_ = 0;  // 0 without pages
  std::atomic<std::int64_t> blocks_{0};
  std::vector<cpu::KvLayer> layers_;
};

}  // namespace protean
