#include "contract/home_blocks.h"

#include <gtest/gtest.h>

#include <random>

namespace protean {
namespace {

TEST(HomeBlocks, EqualHomesTakeTurns) {
  const HomeBlocks homes(3, 10);
  EXPECT_EQ(homes.number(2, 4), 14);
  EXPECT_EQ(homes.block(14).home, 2);
  EXPECT_EQ(homes.block(14).block, 4);
}

TEST(HomeBlocks, HomesWithMoreBlocksTakeTheLastTurns) {
  const HomeBlocks homes({3, 1, 2});
  std::vector<std::pair<int, BlockId>> order;
  for (BlockId number = 0; number < homes.total(); ++number) {
    order.emplace_back(homes.block(number).home, homes.block(number).block);
  }
  EXPECT_EQ(order, (std::vector<std::pair<int, BlockId>>{
                       {0, 0}, {1, 0}, {2, 0}, {0, 1}, {2, 1}, {0, 2}}));
  EXPECT_EQ(homes.least(), 1);
}

TEST(HomeBlocks, EachBlockHasANumberOfItsOwn) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> each(1 + random() % 5);
    for (std::int64_t& blocks : each) {
      blocks = 1 + random() % 30;
    }
    const HomeBlocks homes(each);
    for (BlockId number = 0; number < homes.total(); ++number) {
      const HomeBlocks::Block block = homes.block(number);
      ASSERT_LT(block.block, homes.of(block.home));
      EXPECT_EQ(homes.number(block.home, block.block), number);
    }
  }
}

}  // namespace
}  // namespace protean
