#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace protean {

// Counts references to logical KV blocks; holds no memory. A block without references is free. It
// keeps its content until it is allocated again, and free blocks are allocated in the order of
// their release, so that the prefix cache loses the least recently used content first. The pool
// grows and shrinks at its end. New blocks are allocated before any that may still hold cached
// content. A shrink removes free blocks at once, and the others when they are released or vacated.
// Single-threaded.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t blocks);
  void reserve(std::int64_t blocks);  // growing up to this many blocks then copies nothing

  std::int64_t total() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free() const { return free_; }  // blocks that can be allocated now
  std::int64_t used() const { return used_; }  // blocks with references
  int references(BlockId block) const { return references_[index(block)]; }
  // Returns a number that the block keeps until it is allocated again.
  std::uint64_t content(BlockId block) const { return contents_[index(block)]; }
  std::vector<BlockId> free_blocks() const;  // the longest free one first

  // Returns the block that has been free longest, with one reference; nothing if none is free.
  std::optional<BlockId> allocate();
  void acquire(BlockId block);  // adds a reference, to a free block too
  void release(BlockId block);  // without references, the block is allocated after all free ones

  void grow(std::int64_t blocks);

  // Starts to remove the blocks from limit() on. total() counts them until finish_shrink().
  void begin_shrink(std::int64_t blocks);
  std::int64_t limit() const { return limit_; }  // total() if the pool does not shrink
  bool leaves(BlockId block) const { return block >= limit_; }
  std::int64_t leaving() const { return leaving_; }  // referenced blocks from limit() on
  // Moves all references to a leaving block to a free one and returns that; nothing if none is
  // free.
  std::optional<BlockId> vacate(BlockId block);
  void finish_shrink();  // requires leaving() == 0
  void cancel_shrink();

 private:
  struct Links {
    BlockId previous;
    BlockId next;
  };

  static constexpr BlockId kSentinel = -1;
  static std::size_t index(BlockId block) { return static_cast<std::size_t>(block); }
  Links& links(BlockId block) { return links_[static_cast<std::size_t>(block) + 1]; }
  const Links& links(BlockId block) const { return links_[static_cast<std::size_t>(block) + 1]; }
  void unlink(BlockId block);
  void insert_after(BlockId previous, BlockId block);
  void offer_first(BlockId begin, BlockId end);

  std::vector<int> references_;
  std::vector<std::uint64_t> contents_;
  std::vector<Links> links_;  // block i is at i + 1; free blocks form a ring through the sentinel
  std::int64_t limit_ = 0;
  std::int64_t free_ = 0;
  std::int64_t used_ = 0;
  std::int64_t leaving_ = 0;
  std::uint64_t allocations_ = 0;
};

}  // namespace protean
