#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace protean {

// The cached blocks that a request may use: those of the same precisions and the same salt.
struct CacheScope {
  std::uint32_t precision_tag = 0;  // names a form's precisions: equal tags compute equal KV
  std::string_view salt;
};

// A cached block with what it was computed from.
struct CachedBlock {
  BlockId block = 0;
  BlockId parent = -1;  // the block before it; -1: it is the first of a prompt
  std::string salt;     // set in a prompt's first block
  std::vector<TokenId> tokens;
};

// Finds whole blocks of KV that were computed for the same tokens after the same prefix. The hash
// finds candidates only: a hit compares tokens, parent, precision tag and salt, so that no
// collision, accidental or crafted, returns another prompt's KV. Holds no references: a block must
// be forgotten before it is allocated again. Content may move to another block. Single-threaded.
class PrefixCache {
 public:
  // Tests pass a hash_mask with few bits to provoke collisions.
  PrefixCache(std::int64_t blocks, int block_tokens, std::uint64_t hash_mask = ~std::uint64_t{0});

  // Returns the longest chain of cached blocks that holds the beginning of `tokens`, in order.
  std::vector<BlockId> match(const CacheScope& scope, std::span<const TokenId> tokens) const;

  // Adds `block`, which holds block_tokens `tokens` after `parent_block` (a cached block, or -1 for
  // the first block of a prompt). Returns the block to use for this content: `block`, or an older
  // one with the same content. Returns -1 if other content has the same hash; the chain then cannot
  // be cached from here on.
  BlockId insert(const CacheScope& scope, BlockId parent_block, BlockId block,
                 std::span<const TokenId> tokens);

  void forget(BlockId block);
  // Moves the content of `from` to `to`, which is not cached; chains through it stay intact.
  void move(BlockId from, BlockId to);

  bool has(BlockId block) const { return entry_of(block) >= 0; }
  // Returns true if the block is of these precisions and the one before it has not gone.
  bool follows_its_parent(BlockId block, std::uint32_t precision_tag) const {
    const EntryId id = entry_of(block);
    return id >= 0 && entry(id).precision_tag == precision_tag && !orphaned(entry(id));
  }
  // Returns all blocks of these precisions that match() can find, parents first.
  std::vector<CachedBlock> chains(std::uint32_t precision_tag) const;
  void clear();  // forgets all blocks

  void grow(std::int64_t blocks);     // blocks: their number from now on
  void reserve(std::int64_t blocks);  // growing up to this many blocks then copies nothing

  std::uint64_t insertions() const { return last_generation_; }
  std::int64_t size() const { return static_cast<std::int64_t>(by_hash_.size()); }

 private:
  using EntryId = std::int32_t;

  // The content of one block. Chains link entries, not blocks, so that moving a block is cheap.
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t generation = 0;  // unique for this content; 0: the entry is free
    BlockId block = -1;
    EntryId parent = -1;
    std::uint64_t parent_generation = 0;
    std::uint32_t precision_tag = 0;
    std::string salt;  // set in a prompt's first block; the others inherit it
  };

  EntryId entry_of(BlockId block) const { return entry_of_[static_cast<std::size_t>(block)]; }
  const Entry& entry(EntryId id) const { return entries_[static_cast<std::size_t>(id)]; }
  std::uint64_t chain_hash(const CacheScope& scope, EntryId parent,
                           std::span<const TokenId> tokens) const;
  bool orphaned(const Entry& have) const;  // its parent is gone, so match() cannot reach it
  bool holds(EntryId id, const CacheScope& scope, EntryId parent,
             std::span<const TokenId> tokens) const;
  EntryId take_entry();

  const std::size_t block_tokens_;
  const std::uint64_t hash_mask_;
  std::vector<EntryId> entry_of_;  // by block; -1: not cached
  std::vector<Entry> entries_;
  std::vector<TokenId> tokens_;  // block_tokens for each entry
  std::vector<EntryId> free_entries_;
  std::unordered_map<std::uint64_t, EntryId> by_hash_;
  std::uint64_t last_generation_ = 0;
};

}  // namespace protean
