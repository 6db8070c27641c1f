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
// reallocates a block must forget() it first. Content may move to another block. Single-threaded.
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
  BlockId insert(const CacheScope& scope, BlockId parent_block, BlockId block,
                 std::span<const TokenId> tokens);

  void forget(BlockId block);
  // What `from` holds, `to` holds from now on: all chains through it go on. `to` is not cached.
  void move(BlockId from, BlockId to);

  void grow(std::int64_t blocks);     // so many there may be
  void reserve(std::int64_t blocks);  // so that growing to so many copies nothing

  std::uint64_t insertions() const { return last_generation_; }
  std::int64_t size() const { return static_cast<std::int64_t>(by_hash_.size()); }

 private:
  using EntryId = std::int32_t;

  // One content. Chains link entries, not blocks, so that a block can move at no cost.
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t generation = 0;  // 0: not in use; else unique for this content
    BlockId block = -1;
    EntryId parent = -1;
    std::uint64_t parent_generation = 0;
    std::uint32_t precision_tag = 0;
    std::string salt;  // of a first block; the others inherit it through their parent
  };

  EntryId entry_of(BlockId block) const { return entry_of_[static_cast<std::size_t>(block)]; }
  const Entry& entry(EntryId id) const { return entries_[static_cast<std::size_t>(id)]; }
  std::uint64_t chain_hash(const CacheScope& scope, EntryId parent,
                           std::span<const TokenId> tokens) const;
  bool orphaned(const Entry& have) const;  // its parent was reallocated: match cannot reach it
  bool holds(EntryId id, const CacheScope& scope, EntryId parent,
             std::span<const TokenId> tokens) const;
  EntryId take_entry();

  const std::size_t block_tokens_;
  const std::uint64_t hash_mask_;
  std::vector<EntryId> entry_of_;  // per block, -1: not cached
  std::vector<Entry> entries_;
  std::vector<TokenId> tokens_;  // block_tokens per entry
  std::vector<EntryId> free_entries_;
  std::unordered_map<std::uint64_t, EntryId> by_hash_;
  std::uint64_t last_generation_ = 0;
};

}  // namespace protean
