#include "worker/kv_places.h"

#include <gtest/gtest.h>

#include <set>

namespace protean {
namespace {

TEST(KvPlaces, EveryBlockOfEveryHomeHasAPlaceOfItsOwn) {
  for (const int homes : {2, 3, 4}) {
    for (const KvPlaces& places :
         {places_by_shards({homes, 10}), places_behind(0, {homes, 10}),
          places_behind(1, {homes, 10})}) {
      std::set<BlockId> taken;
      for (int home = 0; home < homes; ++home) {
        for (BlockId block = 0; block < 10; ++block) {
          taken.insert(places.place(home, block));
        }
      }
      EXPECT_EQ(std::ssize(taken), homes * 10);
      EXPECT_EQ(*taken.rbegin(), homes * 10 - 1);
    }
  }
  EXPECT_EQ(places_behind(1, {2, 10}).place(1, 3), 3) << "the keeper's own blocks stay";
}

TEST(KvPlaces, OneHomeNumbersTheBlocksOfAll) {
  EXPECT_EQ(unified(places_by_shards({3, 10}), {3, 10}), KvPlaces()) << "each at its own number";
  const KvPlaces behind = places_behind(1, {2, 10});
  const KvPlaces one = unified(behind, {2, 10});
  EXPECT_EQ(one.place(0, 2 * 4 + 1), behind.place(1, 4));
  EXPECT_EQ(one.place(0, 25), 25) << "a block that came later";
  EXPECT_EQ(divided(one, {2, 10}), behind);
  EXPECT_EQ(divided({}, {3, 10}), places_by_shards({3, 10}));
}

TEST(KvPlaces, BlocksOfAHomeLieWithinItsPartAsTheyLayAlone) {
  const KvPlaces own = unified(places_behind(0, {2, 5}), {2, 5});
  const KvPlaces both = composed(for_homes(own, 2), places_behind(1, {2, 10}), {2, 10});
  for (BlockId block = 0; block < 10; ++block) {
    EXPECT_EQ(both.place(1, block), own.place(0, block));
    EXPECT_EQ(both.place(0, block), 10 + own.place(0, block));
  }
  EXPECT_EQ(composed({}, places_behind(1, {2, 10}), {2, 10}), places_behind(1, {2, 10}));
  EXPECT_EQ(for_homes(own, 3).place(2, 7), own.place(0, 7));
  EXPECT_EQ(for_homes({}, 3), KvPlaces());
}

TEST(KvPlaces, UnequalHomesHaveAPlaceForEachBlock) {
  const HomeBlocks homes({7, 3, 5});
  for (int keeper = 0; keeper < 3; ++keeper) {
    const KvPlaces behind = places_behind(keeper, homes);
    std::set<BlockId> taken;
    for (int home = 0; home < 3; ++home) {
      for (BlockId block = 0; block < homes.of(home); ++block) {
        taken.insert(behind.place(home, block));
        EXPECT_TRUE(home != keeper || behind.place(home, block) == block);
      }
    }
    EXPECT_EQ(std::ssize(taken), 15);
    EXPECT_EQ(*taken.rbegin(), 14);
    EXPECT_EQ(divided(unified(behind, homes), homes), behind);
  }
}

}  // namespace
}  // namespace protean
