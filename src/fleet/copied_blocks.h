#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "scheduler/scheduler.h"

namespace protean {

// Where the blocks of one KV cache are copied to in another one, which may have fewer. A copy is
// valid while its block has the same content.
class CopiedBlocks {
 public:
  CopiedBlocks() = default;
  CopiedBlocks(std::int64_t from, std::int64_t to);

  // Keeps copies of the first blocks of `held`, as many as there is room for, and forgets all
  // others. Returns those of the first blocks that have no valid copy.
  std::vector<HeldBlock> lacking(std::span<const HeldBlock> held);
  // Returns the block to which one of those is to be copied, and counts it as copied.
  BlockId place_for(const HeldBlock& held);
  // Returns the copies by block; -1: it has none.
  std::vector<BlockId> places() const;

 private:
  struct Copy {
    BlockId place = -1;
    std::uint64_t content = 0;
  };

  static std::size_t at(std::int64_t block) { return static_cast<std::size_t>(block); }

  std::vector<Copy> copies_;  // by block
  std::vector<BlockId> free_;
  std::int64_t copied_ = 0;
};

}  // namespace protean
