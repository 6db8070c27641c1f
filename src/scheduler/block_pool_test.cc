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
  pool.acquire(1);  // revived
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

TEST(BlockPoolDeathTest, ReleasingTwiceIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(0), "nobody holds");
}

}  // namespace
}  // namespace protean
