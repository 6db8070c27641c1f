#include "scheduler/block_pool.h"

#include <limits>
#include <utility>

#include "base/check.h"

namespace protean {

BlockPool::BlockPool(std::int64_t blocks) : links_(1, {kSentinel, kSentinel}) {
  grow(blocks);
}

void BlockPool::reserve(std::int64_t blocks) {
  references_.reserve(static_cast<std::size_t>(blocks));
  contents_.reserve(static_cast<std::size_t>(blocks));
  links_.reserve(static_cast<std::size_t>(blocks) + 1);
}

std::optional<BlockId> BlockPool::allocate() {
  if (free_ == 0) {
    return std::nullopt;
  }
  const BlockId block = links(kSentinel).next;
  acquire(block);
  contents_[index(block)] = ++allocations_;
  return block;
}

std::vector<BlockId> BlockPool::free_blocks() const {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(free_));
  for (BlockId block = links(kSentinel).next; block != kSentinel; block = links(block).next) {
    blocks.push_back(block);
  }
  return blocks;
}

void BlockPool::acquire(BlockId block) {
  if (references_[index(block)]++ == 0) {
    check(!leaves(block), "a block that has left is not used again");
    unlink(block);
    ++used_;
  }
}

void BlockPool::release(BlockId block) {
  check(references_[index(block)] > 0, "released a block without references");
  if (--references_[index(block)] > 0) {
    return;
  }
  --used_;
  if (leaves(block)) {
    --leaving_;
  } else {
    insert_after(links(kSentinel).previous, block);
  }
}

void BlockPool::grow(std::int64_t blocks) {
  const std::int64_t before = total();
  check(blocks > before && blocks < std::numeric_limits<BlockId>::max(), "pool size out of range");
  check(limit_ == before, "a pool that shrinks does not grow");
  references_.resize(static_cast<std::size_t>(blocks), 0);
  contents_.resize(static_cast<std::size_t>(blocks), 0);
  links_.resize(static_cast<std::size_t>(blocks) + 1);
  limit_ = blocks;
  offer_first(static_cast<BlockId>(before), static_cast<BlockId>(blocks));
}

void BlockPool::begin_shrink(std::int64_t blocks) {
  check(blocks > 0 && blocks < total() && limit_ == total(), "a pool shrinks once at a time");
  limit_ = blocks;
  for (auto block = static_cast<BlockId>(blocks); block < total(); ++block) {
    if (references_[index(block)] == 0) {
      unlink(block);
    } else {
      ++leaving_;
    }
  }
}

std::optional<BlockId> BlockPool::vacate(BlockId block) {
  check(leaves(block) && references(block) > 0, "only a leaving block in use is vacated");
  const std::optional<BlockId> to = allocate();
  if (to) {
    references_[index(*to)] = std::exchange(references_[index(block)], 0);
    --used_;
    --leaving_;
  }
  return to;
}

void BlockPool::finish_shrink() {
  check(leaving_ == 0, "a block in use cannot leave");
  references_.resize(static_cast<std::size_t>(limit_));
  contents_.resize(static_cast<std::size_t>(limit_));
  links_.resize(static_cast<std::size_t>(limit_) + 1);
}

void BlockPool::cancel_shrink() {
  const auto begin = static_cast<BlockId>(limit_);
  limit_ = total();
  leaving_ = 0;
  offer_first(begin, static_cast<BlockId>(limit_));
}

void BlockPool::unlink(BlockId block) {
  const Links gone = links(block);
  links(gone.previous).next = gone.next;
  links(gone.next).previous = gone.previous;
  --free_;
}

void BlockPool::insert_after(BlockId previous, BlockId block) {
  const BlockId next = links(previous).next;
  links(block) = {previous, next};
  links(previous).next = block;
  links(next).previous = block;
  ++free_;
}

// Makes the free blocks of [begin, end) the next to be allocated, in ascending order.
void BlockPool::offer_first(BlockId begin, BlockId end) {
  for (BlockId block = end; block-- > begin;) {
    if (references_[index(block)] == 0) {
      insert_after(kSentinel, block);
    }
  }
}

}  // namespace protean
