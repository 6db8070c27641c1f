#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace protean {

// Which cached blocks a request may use: those computed at the same precisions, under the same
// salt.
struct CacheScope {
  std::uint32_t precision_tag = 0;  // names a map of layer precisions; equal tags, equal numbers
  std::string_view salt;
};

// Finds whole blocks of KV that were computed for the same tokens after the same prefix. The hash
// only finds candidates; a hit compares tokens, parent, precision tag and salt themselves, so no
// collision, accidental or crafted, can hand out another prompt's KV. Holds no references: whoever
// reallocates a block must forget() it first. Single-threaded.
class PrefixCache {
 public:
  // A hash_mask with few bits makes contents collide: for tests.
  PrefixCache(std::int64_t blocks, int block_tokens, std::uint64_t hash_mask = ~std::uint64_t{0});

  // The longest chain of cached blocks that `tokens` begins with, in order.
  std::vector<BlockId> match(const CacheScope& scope, std::span<const TokenId> tokens) const;

  // Remembers that `block` holds block_tokens `tokens` after `parent` (-1: it is a prompt's first;
  // else a block in the cache). Returns the block that holds this content from now on: `block`, or
  // an older twin, which the caller should use instead; -1 if another content has the same hash,
  // and this chain then cannot be cached.
  BlockId insert(const CacheScope& scope, BlockId parent, BlockId block,
                 std::span<const TokenId> tokens);

  void forget(BlockId block);
  std::uint64_t insertions() const { return last_generation_; }
  std::int64_t size() const { return static_cast<std::int64_t>(by_hash_.size()); }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t generation = 0;  // 0: not in the cache; else unique for this content
    BlockId parent = -1;
    std::uint64_t parent_generation = 0;
    std::uint32_t precision_tag = 0;
    std::string salt;  // of a first block; the others inherit it through their parent
  };

  const Entry& entry(BlockId block) const { return entries_[static_cast<std::size_t>(block)]; }
  std::uint64_t chain_hash(const CacheScope& scope, BlockId parent,
                           std::span<const TokenId> tokens) const;
  bool orphaned(const Entry& have) const;  // its parent was reallocated: match cannot reach it
  bool holds(BlockId block, const CacheScope& scope, BlockId parent,
             std::span<const TokenId> tokens) const;

  const std::size_t block_tokens_;
  const std::uint64_t hash_mask_;
  std::vector<Entry> entries_;   // one per block
  std::vector<TokenId> tokens_;  // block_tokens per block
  std::unordered_map<std::uint64_t, BlockId> by_hash_;
  std::uint64_t last_generation_ = 0;
};

}  // namespace protean
