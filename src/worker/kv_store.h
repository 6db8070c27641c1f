#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
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
#include "worker/kv_places.h"

namespace protean {

// Where a device has KV. Stays valid while its arrays change, but then tells of what was: a block
// that is gone reads as other content, or as zeros.
struct KvLayout {
  std::int64_t blocks = 0;           // of the only home
  std::vector<cpu::KvLayer> layers;  // of the model
  // By layer; null: each block is at the place of its number.
  std::vector<std::shared_ptr<const KvPlaces>> places;

  const std::byte* block(int layer, BlockId block) const {
    const auto index = static_cast<std::size_t>(layer);
    const std::int64_t place = places[index] == nullptr ? block : places[index]->place(0, block);
    return layers[index].base + place * layers[index].block_stride_bytes;
  }
};

// Consecutive KV heads of a layer that two devices have.
struct SharedHeads {
  int layer = 0;
  int from = 0;  // index of the first one in the source's array
  int to = 0;    // in the other's
  int count = 0;
};

// The KV memory of one device; maps block ids to memory. Each layer whose attention the device
// holds has an array of its own, so that a layer can come and go without moving another. The layout
// of an array is [place][slot of a KV head], so a run of heads is contiguous within a block, scales
// included (AMOEBA section 3.1; cpu::KvLayer). The content belongs to the steps that write it.
//
// On pages, the number of blocks can change while steps run (MorphServe section 4.4), and so can
// the heads and homes of a layer (set_layer). Each array has a range of addresses for all blocks
// that the pool could hold, so that a place's address stays as it is, but for leave_addresses().
// One thread may call the functions that attach and detach pages; any thread may call blocks() and
// array(); the others are called by the thread that runs steps.
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
  std::int64_t block_bytes() const;  // in all arrays
  std::int64_t bytes() const;

  // Adds blocks at the end and publishes them once their memory is there. A failure changes nothing
  // (cpu::PageRange::attach).
  Status grow(std::int64_t blocks, const cpu::MayGoOn& may_go_on = {});

  // Sets a smaller number of blocks. The memory of the others stays until shrink().
  void limit(std::int64_t blocks);
  // Returns the pages that no published block needs to the pool.
  void shrink();

  // Attaches the pages that a layer's array needs for `places` blocks of so many KV heads. Steps
  // may use the array meanwhile, and homes may be joined or divided. A failure changes nothing.
  Status make_room(int layer, int kv_heads, std::int64_t places,
                   const cpu::MayGoOn& may_go_on = {});
  // Returns the pages that the layer's array does not need to the pool, on any thread.
  void trim(int layer);

  // Moves the layer's array, with its pages and content, to other addresses, since a thread of a
  // device that has failed may still write to these: it then writes to memory that is not used. On
  // the thread that attaches pages, before set_layer(). A failure changes nothing.
  Status leave_addresses(int layer);

  // Where a layer's blocks are; null: each at the place of its number.
  const KvPlaces* places(int layer) const { return places_[static_cast<std::size_t>(layer)].get(); }
  // Between steps: the layer's array, which has room, gets so many heads, and blocks of other homes
  // beyond blocks(). The caller has put the content in its place.
  void set_layer(int layer, int kv_heads, std::int64_t others, KvPlaces places);
  // Between steps: as many homes compute on this device, each with blocks of its own that lie
  // alike.
  void join(int homes);
  // Between steps: the blocks of all homes become those of one, or the reverse (HomeBlocks).
  // Afterwards the device belongs to home `own`.
  void unify(const HomeBlocks& homes);
  void divide(const HomeBlocks& homes, int own);

  // Returns where a layer's array on pages begins; null if it has never had pages.
  std::byte* array(int layer) const;

  // On the thread that runs steps, or while no change is on its way to it.
  KvLayout layout() const { return {blocks(), layers_, places_}; }
  std::vector<SharedHeads> own_heads() const;  // shared with itself
  // Copies heads of block `from` of another device, or of this one, to block `to` here.
  void copy(const KvLayout& source, const SharedHeads& heads, const BlockMove& move) const;

 private:
  // A layer's array on pages.
  struct Array {
    cpu::PageRange pages;
    std::int64_t stride_bytes = 0;
    std::int64_t others = 0;  // blocks of other homes that have places here
  };

  KvStore() = default;
  void lay_out(const Shape& shape);
  Status reserve(Array& array);
  std::int64_t pages_for(const Array& array, std::int64_t blocks) const;
  void set_places(int layer, KvPlaces places);

  cpu::Region memory_;
  cpu::PagePool* pool_ = nullptr;  // null without pages
  // Held while homes and their blocks change, which trim() on another thread must see together.
  std::mutex changing_;
  mutable std::mutex leaving_;        // held while an array gets or leaves its addresses
  std::vector<Array> arrays_;         // on pages, one for each layer; reserved when first used
  std::vector<cpu::PageRange> left_;  // see leave_addresses()
  int block_tokens_ = 0;
  std::atomic<std::int64_t> blocks_{0};  // of each home
  std::vector<cpu::KvLayer> layers_;
  std::vector<std::shared_ptr<const KvPlaces>> places_;  // by layer; equal ones are one
};

}  // namespace protean
