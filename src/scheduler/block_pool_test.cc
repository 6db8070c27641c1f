#include "scheduler/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace protean {
namespace {

TEST(BlockPool, FreeBlocksLeaveInTheOrderTheyWereReleased) {
  BlockPool pool(3);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(1);
  pool.release(0);
  pool.acquire(1);  // a free block
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
}

TEST(BlockPool, CountsAgreeWithANaiveModel) {
  std::mt19937 random(1);
  BlockPool pool(17);
  std::vector<int> references(17, 0);
  for (int i = 0; i < 20000; ++i) {
    const auto pick = static_cast<BlockId>(random() % 17);
    int& count = references[static_cast<std::size_t>(pick)];
    if (random() % 3 == 0) {
      if (const auto block = pool.allocate()) {
        ASSERT_EQ(references[static_cast<std::size_t>(*block)]++, 0);
      }
    } else if (random() % 3 == 0) {
      pool.acquire(pick);
      ++count;
    } else if (count > 0) {
      pool.release(pick);
      --count;
    }
    ASSERT_EQ(pool.free(), std::count(references.begin(), references.end(), 0));
    ASSERT_EQ(pool.references(pick), count);
  }
}

TEST(BlockPool, ABlockHasOtherContentOnceItIsAllocatedAgain) {
  BlockPool pool(2);
  const BlockId block = pool.allocate().value();
  const std::uint64_t content = pool.content(block);
  pool.release(block);
  pool.acquire(block);  // such as for a cached prefix
  EXPECT_EQ(pool.content(block), content);
  pool.release(block);
  pool.allocate();
  EXPECT_EQ(pool.allocate(), block);
  EXPECT_NE(pool.content(block), content);
}

TEST(BlockPool, NewBlocksAreAllocatedBeforeCachedOnes) {
  BlockPool pool(2);
  EXPECT_EQ(pool.allocate(), 0);
  pool.release(0);
  pool.grow(4);
  EXPECT_EQ(pool.total(), 4);
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 0);
}

TEST(BlockPool, AShrinkRemovesFreeBlocksAtOnceAndOthersWhenReleased) {
  BlockPool pool(5);
  for (BlockId block = 0; block < 4; ++block) {
    EXPECT_EQ(pool.allocate(), block);
  }
  pool.acquire(3);
  pool.release(0);
  pool.begin_shrink(2);
  EXPECT_EQ(pool.total(), 5);  // blocks 3 and 4 count until the end
  EXPECT_EQ(pool.free(), 1);   // block 0
  EXPECT_EQ(pool.leaving(), 2);
  EXPECT_EQ(pool.used(), 3);
  EXPECT_EQ(pool.vacate(3), 0);  // both references move
  EXPECT_EQ(pool.references(0), 2);
  EXPECT_EQ(pool.references(3), 0);
  EXPECT_EQ(pool.vacate(2), std::nullopt);
  pool.release(2);
  EXPECT_EQ(pool.leaving(), 0);
  EXPECT_EQ(pool.free(), 0);
  pool.finish_shrink();
  EXPECT_EQ(pool.total(), 2);
  EXPECT_EQ(pool.used(), 2);
}

TEST(BlockPool, ACancelledShrinkMakesBlocksFreeAgain) {
  BlockPool pool(4);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 2);
  pool.begin_shrink(1);
  pool.release(1);
  pool.cancel_shrink();
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(pool.leaving(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.allocate(), std::nullopt);
}

TEST(BlockPoolDeathTest, ABlockInUseCannotLeave) {
  BlockPool pool(2);
  pool.allocate();
  pool.allocate();
  pool.begin_shrink(1);
  EXPECT_DEATH(pool.finish_shrink(), "in use");
}

TEST(BlockPoolDeathTest, ReleasingTwiceIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(0), "without references");
}

}  // namespace
}  // namespace protean
