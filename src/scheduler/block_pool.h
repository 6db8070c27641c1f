#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace protean {

// Counts references to logical KV blocks; holds no memory. A block with no reference is free to be
// allocated, but keeps its content until then: free blocks leave in the order they were released,
// so what the prefix cache remembers goes least recently used first. Single-threaded.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t blocks);

  std::int64_t total() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free() const { return free_; }
  std::int64_t used() const { return total() - free_; }
  int references(BlockId block) const { return references_[index(block)]; }

  // The longest-free block with one reference, or nothing when all are referenced.
  std::optional<BlockId> allocate();
  void acquire(BlockId block);  // one more reference; revives a free block
  void release(BlockId block);  // one fewer; the last makes it the youngest free block

 private:
  static std::size_t index(BlockId block) { return static_cast<std::size_t>(block); }
  void unlink(BlockId block);
  void append(BlockId block);

  // Free blocks form a doubly linked ring through the sentinel at index total().
  struct Links {
    BlockId previous;
    BlockId next;
  };
  std::vector<int> references_;
  std::vector<Links> links_;
  std::int64_t free_ = 0;
};

}  // namespace protean
