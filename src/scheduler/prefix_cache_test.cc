#include "scheduler/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

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

TEST(PrefixCache, EqualContentGivesTheOlderBlock) {
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
  // Block 1 now begins another prompt, and the old chain is computed again in other blocks.
  EXPECT_EQ(cache.insert({}, -1, 5, Tokens{7, 7}), 5);
  EXPECT_EQ(cache.match({}, Tokens{7, 7, 3, 4}), std::vector<BlockId>{5});
  EXPECT_EQ(cache.insert({}, -1, 1, kFirst), 1);
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), std::vector<BlockId>{1});
  EXPECT_EQ(cache.insert({}, 1, 2, kSecond), 2);  // replaces the orphan
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), (std::vector<BlockId>{1, 2}));
  cache.forget(6);  // the orphan's block; the new entry stays
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), (std::vector<BlockId>{1, 2}));
}

TEST(PrefixCache, ChainsThroughAMovedBlockStayIntact) {
  PrefixCache cache(8, 2);
  EXPECT_EQ(cache.insert({}, -1, 5, kFirst), 5);
  EXPECT_EQ(cache.insert({}, 5, 6, kSecond), 6);
  cache.move(5, 1);
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), (std::vector<BlockId>{1, 6}));
  cache.move(6, 2);
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4}), (std::vector<BlockId>{1, 2}));
  EXPECT_EQ(cache.insert({}, 2, 3, kFirst), 3);    // the chain continues after block 2
  EXPECT_EQ(cache.insert({}, -1, 5, kSecond), 5);  // block 1's successor
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 3, 4, 1, 2}), (std::vector<BlockId>{1, 2, 3}));
  EXPECT_EQ(cache.match({}, kSecond), std::vector<BlockId>{5});
  cache.forget(1);
  EXPECT_TRUE(cache.match({}, kFirst).empty());
}

constexpr std::uint64_t kAllCollide = 0;

TEST(PrefixCache, AnEqualHashOfOtherTokensIsNoHit) {
  PrefixCache cache(8, 2, kAllCollide);
  EXPECT_EQ(cache.insert({}, -1, 5, kFirst), 5);
  EXPECT_TRUE(cache.match({}, kSecond).empty());
  EXPECT_TRUE(cache.match({}, Tokens{1, 3}).empty());  // only the last token differs
  EXPECT_EQ(cache.insert({}, -1, 6, kSecond), -1);
  EXPECT_EQ(cache.match({}, kFirst), std::vector<BlockId>{5});
}

TEST(PrefixCache, AnEqualHashOfAnotherScopeIsNoHit) {
  PrefixCache cache(8, 2, kAllCollide);
  EXPECT_EQ(cache.insert({.precision_tag = 1, .salt = "a"}, -1, 5, kFirst), 5);
  EXPECT_TRUE(cache.match({.precision_tag = 1, .salt = "b"}, kFirst).empty());
  EXPECT_TRUE(cache.match({.precision_tag = 2, .salt = "a"}, kFirst).empty());
  EXPECT_EQ(cache.insert({.precision_tag = 1, .salt = "b"}, -1, 6, kFirst), -1);
  EXPECT_EQ(cache.insert({.precision_tag = 2, .salt = "a"}, -1, 6, kFirst), -1);
}

TEST(PrefixCache, AnEqualHashAfterAnotherParentIsNoHit) {
  PrefixCache cache(8, 2, kAllCollide);
  EXPECT_EQ(cache.insert({}, -1, 5, kFirst), 5);
  EXPECT_EQ(cache.match({}, Tokens{1, 2, 1, 2}), std::vector<BlockId>{5});
  EXPECT_EQ(cache.insert({}, 5, 6, kFirst), -1);
}

// The content of a block: precision tag, salt, and all tokens from the first of the prompt.
using Content = std::tuple<std::uint32_t, std::string, Tokens>;

// A cache without hashes that gets the same random prompts as the real one. It learns from the real
// one only which chains a collision kept out.
class Comparison {
 public:
  explicit Comparison(std::uint64_t hash_mask)
      : may_refuse_(hash_mask != ~std::uint64_t{0}), cache_(kBlocks, kBlockTokens, hash_mask) {}

  // Looks up a random prompt, then inserts all of its blocks.
  void step() {
    if (below(4) == 0) {
      move_any();
    }
    const std::string salt(below(3), 's');
    const CacheScope scope{.precision_tag = below(3), .salt = salt};
    Tokens tokens(below(4 * kBlockTokens + 1));
    std::generate(tokens.begin(), tokens.end(), [&] { return static_cast<TokenId>(below(2)); });
    const auto blocks = static_cast<std::ptrdiff_t>(tokens.size() / kBlockTokens);
    std::vector<BlockId> expected;
    for (std::ptrdiff_t i = 0; i < blocks; ++i) {
      const auto found = known_.find(content_of(scope, tokens, i));
      if (found == known_.end()) {
        break;
      }
      expected.push_back(found->second);
    }
    ASSERT_EQ(cache_.match(scope, tokens), expected);
    hits += std::ssize(expected);
    std::vector<BlockId> chain;
    for (bool cached = true; cached && std::ssize(chain) < blocks;) {
      cached = insert(scope, tokens, chain, expected);
    }
  }

  std::int64_t hits = 0;
  std::int64_t refusals = 0;

 private:
  static constexpr int kBlocks = 24;
  static constexpr int kBlockTokens = 2;

  static Content content_of(const CacheScope& scope, const Tokens& tokens, std::ptrdiff_t block) {
    return {scope.precision_tag, std::string(scope.salt),
            Tokens(tokens.begin(), tokens.begin() + (block + 1) * kBlockTokens)};
  }

  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

  // Inserts the block after `chain`. Returns false if the chain cannot be continued.
  bool insert(const CacheScope& scope, const Tokens& tokens, std::vector<BlockId>& chain,
              const std::vector<BlockId>& referenced) {
    const BlockId block = reallocate(chain, referenced);
    const Content content = content_of(scope, tokens, std::ssize(chain));
    const auto [known, fresh] = known_.try_emplace(content, block);
    const BlockId holder =
        cache_.insert(scope, chain.empty() ? -1 : chain.back(), block,
                      std::span(tokens).subspan(chain.size() * kBlockTokens, kBlockTokens));
    if (fresh && holder == -1 && may_refuse_) {
      known_.erase(known);
      ++refusals;
      return false;
    }
    EXPECT_EQ(holder, known->second);  // the older block if the content was cached
    chain.push_back(holder);
    return holder == known->second;
  }

  // Moves a block's content to a free block, as a shrinking KV cache does.
  void move_any() {
    const BlockId to = reallocate({}, {});
    const auto from = static_cast<BlockId>(below(kBlocks));
    if (from != to) {
      cache_.move(from, to);
      for (auto& [content, block] : known_) {
        block = block == from ? to : block;
      }
    }
  }

  // Reallocates a random block: its content and all chains through it are lost.
  BlockId reallocate(const std::vector<BlockId>& chain, const std::vector<BlockId>& referenced) {
    BlockId block = -1;
    do {
      block = static_cast<BlockId>(below(kBlocks));
    } while (std::ranges::count(chain, block) + std::ranges::count(referenced, block) > 0);
    cache_.forget(block);
    const auto holds =
        std::ranges::find_if(known_, [block](const auto& known) { return known.second == block; });
    if (holds != known_.end()) {
      const Content gone = holds->first;
      std::erase_if(known_, [&gone](const auto& known) {
        const auto& [tag, salt, begin] = gone;
        const auto& [other_tag, other_salt, other] = known.first;
        return other_tag == tag && other_salt == salt && other.size() >= begin.size() &&
               std::equal(begin.begin(), begin.end(), other.begin());
      });
    }
    return block;
  }

  const bool may_refuse_;
  PrefixCache cache_;
  std::map<Content, BlockId> known_;
  std::mt19937 random_{1};
};

TEST(PrefixCacheProperty, FindsWhatACacheWithoutHashesFinds) {
  for (const std::uint64_t mask : {~std::uint64_t{0}, std::uint64_t{63}, std::uint64_t{3}}) {
    SCOPED_TRACE(testing::Message() << "hash mask " << mask);
    Comparison comparison(mask);
    for (int step = 0; step < 20'000 && !HasFailure(); ++step) {
      comparison.step();
    }
    EXPECT_GT(comparison.hits, 100);
    EXPECT_EQ(comparison.refusals > 0, mask != ~std::uint64_t{0});
  }
}

}  // namespace
}  // namespace protean
