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

// The KV memory of one device; maps block ids to memory. The layout is [block][layer][slot of a KV
// head], so that a block is contiguous (a capacity change moves blocks) and so is a run of heads
// within a layer, scales included (a TP change moves those; AMOEBA section 3.1; cpu::KvLayer). The
// content belongs to the steps that write it.
//
// On pages, the number of blocks can change while steps run (MorphServe section 4.4). Addresses are
// reserved for all blocks that the pool could hold, so that a block's address never changes. One
// thread may call grow() and shrink(); any thread may call blocks().
class KvStore {
 public:
  // Uses memory of its own, of fixed size, which is touched when steps write to it. Both functions
  // refuse sizes that do not fit an address space.
  static Result<std::unique_ptr<KvStore>> create(const ModelSpec& spec, const KvForm& form);
  // Uses pages of the pool, which must outlive the store.
  static Result<std::unique_ptr<KvStore>> create(const ModelSpec& spec, const KvForm& form,
                                                 cpu::PagePool& pool);

  std::span<const cpu::KvLayer> layers() const { return layers_; }
  std::int64_t blocks() const { return blocks_.load(std::memory_order_acquire); }
  int block_tokens() const { return layers_.front().block_tokens; }
  std::int64_t block_bytes() const { return layers_.front().block_stride_bytes; }
  std::int64_t bytes() const { return memory_.bytes() + range_.bytes(); }

  // Adds blocks at the end and publishes them once their memory is there. A failure changes nothing
  // (cpu::PageRange::attach).
  Status grow(std::int64_t blocks, const cpu::MayGoOn& may_go_on = {});

  // Sets a smaller number of blocks. The memory of the others stays until shrink().
  void limit(std::int64_t blocks);
  // Returns the pages that no published block needs to the pool.
  void shrink();

  // Copies the piece `part` of block `from` of a store to block `to` of this one; a block is cut
  // into `parts` about equal pieces. The store may be this one; its blocks are as large.
  void copy(const KvStore& source, const BlockMove& move, std::int64_t part,
            std::int64_t parts) const;

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
