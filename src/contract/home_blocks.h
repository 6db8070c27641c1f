#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace protean {

// The KV blocks of a group's homes, the replicas of which it was made, which may have unequal
// numbers of them. Each home numbers its blocks from 0. Once the homes have become one wide
// replica, its blocks are those of the homes in turns: the first block of each home, then the
// second block of each home that has two, and so on. So block `a` of home `h` among g equal homes
// is block `a * g + h`.
class HomeBlocks {
 public:
  HomeBlocks(int homes, std::int64_t each);
  explicit HomeBlocks(std::vector<std::int64_t> each);

  int count() const { return static_cast<int>(each_.size()); }
  std::int64_t of(int home) const { return each_[static_cast<std::size_t>(home)]; }
  std::int64_t total() const { return total_; }
  std::int64_t least() const;

  // Returns the number that a home's block has in the wide replica.
  BlockId number(int home, BlockId block) const;
  // The reverse of number().
  struct Block {
    int home = 0;
    BlockId block = 0;
  };
  Block block(BlockId number) const;

 private:
  std::int64_t begin_of_turn(std::int64_t turn) const;

  std::vector<std::int64_t> each_;
  std::int64_t total_ = 0;
  bool equal_ = true;
};

}  // namespace protean
