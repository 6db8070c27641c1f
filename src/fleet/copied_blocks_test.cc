#include "fleet/copied_blocks.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

TEST(CopiedBlocks, AsManyAsThereIsRoomForInTheirOrder) {
  CopiedBlocks blocks(6, 3);
  const std::vector<HeldBlock> held = {{4, 1}, {2, 1}, {0, 1}, {5, 1}};
  std::vector<HeldBlock> lacking = blocks.lacking(held);
  ASSERT_EQ(lacking.size(), 3U);
  EXPECT_EQ(lacking[2].block, 0);
  EXPECT_EQ(blocks.place_for(lacking[0]), 0);
  EXPECT_EQ(blocks.place_for(lacking[1]), 1);
  EXPECT_EQ(blocks.lacking(held).size(), 1U) << "copies are valid while the content is the same";
  EXPECT_EQ(blocks.places(), (std::vector<BlockId>{-1, -1, 1, -1, 0, -1}));
}

TEST(CopiedBlocks, OthersTakeThePlacesOfCopiesThatAreNotValid) {
  CopiedBlocks blocks(6, 2);
  for (const HeldBlock& block : blocks.lacking(std::vector<HeldBlock>{{1, 7}, {2, 8}})) {
    blocks.place_for(block);
  }
  const std::vector<HeldBlock> held = {{1, 9}, {3, 1}, {2, 8}};
  const std::vector<HeldBlock> lacking = blocks.lacking(held);
  ASSERT_EQ(lacking.size(), 2U) << "block 1 has other content, and block 2 no room";
  blocks.place_for(lacking[0]);
  blocks.place_for(lacking[1]);
  EXPECT_TRUE(blocks.lacking(held).empty());
  const std::vector<BlockId> places = blocks.places();
  EXPECT_EQ(places[2], -1);
  EXPECT_EQ(places[1] + places[3], 1) << "places 0 and 1";
}

}  // namespace
}  // namespace protean
