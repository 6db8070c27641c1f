#include "scheduler/block_pool.h"

#include <limits>

#include "base/check.h"

namespace protean {

BlockPool::BlockPool(std::int64_t blocks)
    : references_(static_cast<std::size_t>(blocks), 0),
      links_(static_cast<std::size_t>(blocks) + 1) {
  check(blocks > 0 && blocks < std::numeric_limits<BlockId>::max(), "pool size out of range");
  const auto sentinel = static_cast<BlockId>(blocks);
  links_[index(sentinel)] = {sentinel, sentinel};
  for (BlockId block = 0; block < sentinel; ++block) {
    append(block);
  }
}

std::optional<BlockId> BlockPool::allocate() {
  if (free_ == 0) {
    return std::nullopt;
  }
  const BlockId block = links_[references_.size()].next;
  unlink(block);
  references_[index(block)] = 1;
  return block;
}

void BlockPool::acquire(BlockId block) {
  if (references_[index(block)]++ == 0) {
    unlink(block);
  }
}

void BlockPool::release(BlockId block) {
  check(references_[index(block)] > 0, "released a block nobody holds");
  if (--references_[index(block)] == 0) {
    append(block);
  }
}

void BlockPool::unlink(BlockId block) {
  const Links links = links_[index(block)];
  links_[index(links.previous)].next = links.next;
  links_[index(links.next)].previous = links.previous;
  --free_;
}

void BlockPool::append(BlockId block) {
  const auto sentinel = static_cast<BlockId>(references_.size());
  const BlockId last = links_[index(sentinel)].previous;
  links_[index(block)] = {last, sentinel};
  links_[index(last)].next = block;
  links_[index(sentinel)].previous = block;
  ++free_;
}

}  // namespace protean
