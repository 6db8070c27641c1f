#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/holding.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "device/cpu/attention.h"
#include "device/cpu/memory.h"
#include "device/cpu/pages.h"

namespace protean {

// The KV memory of one device; maps block ids to memory. Each layer whose attention the device
// holds has an array of its own, so that a layer can come and go without moving another. The layout
// of an array is [block][slot of a KV head], so a run of heads is contiguous within a block, scales
// included (AMOEBA section 3.1; cpu::KvLayer). The content belongs to the steps that write it.
//
// On pages, the number of blocks can change while steps run (MorphServe section 4.4). Each array
// has a range of addresses for all blocks that the pool could hold, so that a block's address never
// changes. One thread may call grow() and shrink(); any thread may call blocks().
class KvStore {
 public:
  // What a device keeps: the arrays of its layers, with the heads of its shards.
  struct Shape {
    const ModelSpec& spec;
    const Holding& holding;
    int shards = 1;
    KvForm kv;
  };
  // Uses memory of its own, of fixed size, which is touched when steps write to it. Both functions
  // refuse sizes that do not fit an address space.
  static Result<std::unique_ptr<KvStore>> create(const Shape& shape);
  // Uses pages of the pool, which must outlive the store.
  static Result<std::unique_ptr<KvStore>> create(const Shape& shape, cpu::PagePool& pool);

  // One for each layer of the model; those without attention here have no heads and no address.
  std::span<const cpu::KvLayer> layers() const { return layers_; }
  std::int64_t blocks() const { return blocks_.load(std::memory_order_acquire); }
  int block_tokens() const { return block_tokens_; }
  std::int64_t block_bytes() const { return block_bytes_; }  // in all arrays
  std::int64_t bytes() const;

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
  // A layer's array on pages.
  struct Array {
    cpu::PageRange pages;
    std::int64_t stride_bytes = 0;
  };

  KvStore() = default;
  std::int64_t lay_out(const Shape& shape);
  std::int64_t pages_for(const Array& array, std::int64_t blocks) const;

  cpu::Region memory_;
  std::vector<Array> arrays_;
  std::int64_t page_bytes_ = 0;  // 0 without pages
  int block_tokens_ = 0;
  std::int64_t block_bytes_ = 0;
  std::atomic<std::int64_t> blocks_{0};
  std::vector<cpu::KvLayer> layers_;
};

}  // namespace protean
