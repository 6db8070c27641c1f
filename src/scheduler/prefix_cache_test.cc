#include "scheduler/prefix_cache.h"

#include <gtest/gtest.h>

namespace protean {
namespace {

using Tokens = std::vector<TokenId>;
const Tokens kFirst = {1, 2};
const Tokens kSecond = {3, 4};

TEST(PrefixCache, FindsTheLongestChain) {
  PrefixCache cache(8, 2);
  EXPECT_EQ(cache.insert({}, -1, 5, kFirst), 5);
  EXPECT_EQ(cache.insert({}, 5, 6, kSecond), 6);
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4, 9}), (std::vector<BlockId>{5, 6}));
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3}), std::vector<BlockId>{5});
  EXPECT_TRUE(cache.match({}, Tokens{3, 4}).empty());
  EXPECT_TRUE(cache.match({}, Tokens{1}).empty());
}

TEST(PrefixCache, TwinsGiveTheOlderBlock) {
  PrefixCache cache(8, 2);
  EXPECT_EQ(cache.insert({}, -1, 5, kFirst), 5);
  EXPECT_EQ(cache.insert({}, -1, 2, kFirst), 5);
  EXPECT_EQ(cache.size(), 1);
}

TEST(PrefixCache, PrecisionAndSaltSeparate) {
  PrefixCache cache(8, 2);
  EXPECT_EQ(cache.insert({.precision_tag = 1, .salt = "a"}, -1, 5, kFirst), 5);
  EXPECT_TRUE(cache.match({.precision_tag = 0, .salt = "a"}, kFirst).empty());
  EXPECT_TRUE(cache.match({.precision_tag = 1, .salt = "b"}, kFirst).empty());
  EXPECT_TRUE(cache.match({.precision_tag = 1, .salt = ""}, kFirst).empty());
  EXPECT_EQ(cache.match({.precision_tag = 1, .salt = "a"}, kFirst), std::vector<BlockId>{5});
}

TEST(PrefixCache, AChildOfAReallocatedParentIsNotFound) {
  PrefixCache cache(8, 2);
  EXPECT_EQ(cache.insert({}, -1, 5, kFirst), 5);
  EXPECT_EQ(cache.insert({}, 5, 6, kSecond), 6);
  cache.forget(5);
  // The same block now begins another prompt, then the old chain is computed again elsewhere.
  EXPECT_EQ(cache.insert({}, -1, 5, Tokens{7, 7}), 5);
  EXPECT_EQ(cache.match({}, Tokens{7, 7, 3, 4}), std::vector<BlockId>{5});
  EXPECT_EQ(cache.insert({}, -1, 1, kFirst), 1);
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), std::vector<BlockId>{1});
  EXPECT_EQ(cache.insert({}, 1, 2, kSecond), 2);  // takes the orphan's place
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), (std::vector<BlockId>{1, 2}));
  cache.forget(6);  // forgetting the orphan must not take the new entry with it
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), (std::vector<BlockId>{1, 2}));
}

}  // namespace
}  // namespace protean
