#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace protean {

// Counts references to logical KV blocks; holds no memory. A block with no reference is free to be
// allocated, but keeps its content until then: free blocks leave in the order they were released,
// so what the prefix cache remembers goes least recently used first. The number of blocks changes
// at its end: new ones are taken before those that may be remembered, and a shrink takes away the
// free ones at once, the others as they are released or vacated. Single-threaded.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t blocks);
  void reserve(std::int64_t blocks);  // so that growing to so many copies nothing

  std::int64_t total() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free() const { return free_; }  // can be allocated now
  std::int64_t used() const { return used_; }  // referenced
  int references(BlockId block) const { return references_[index(block)]; }

  // The longest-free block with one reference, or nothing when all are referenced.
  std::optional<BlockId> allocate();
  void acquire(BlockId block);  // one more reference; revives a free block
  void release(BlockId block);  // one fewer; the last makes it the youngest free block

  void grow(std::int64_t blocks);

  // Blocks from limit() on leave. Until finish or cancel, total() counts them still.
  void begin_shrink(std::int64_t blocks);
  std::int64_t limit() const { return limit_; }  // total(), unless it shrinks
  bool leaves(BlockId block) const { return block >= limit_; }
  std::int64_t leaving() const { return leaving_; }  // of those that leave, the referenced ones
  // Hands all references to a leaving block on to a free one, or returns nothing if there is none.
  std::optional<BlockId> vacate(BlockId block);
  void finish_shrink();  // none may be leaving() any more
  void cancel_shrink();

 private:
  struct Links {
    BlockId previous;
    BlockId next;
  };

  static constexpr BlockId kSentinel = -1;
  static std::size_t index(BlockId block) { return static_cast<std::size_t>(block); }
  Links& links(BlockId block) { return links_[static_cast<std::size_t>(block) + 1]; }
  void unlink(BlockId block);
  void insert_after(BlockId previous, BlockId block);
  void offer_first(BlockId begin, BlockId end);

  std::vector<int> references_;
  std::vector<Links> links_;  // free blocks form a ring through the sentinel, which comes first
  std::int64_t limit_ = 0;
  std::int64_t free_ = 0;
  std::int64_t used_ = 0;
  std::int64_t leaving_ = 0;
};

}  // namespace protean
