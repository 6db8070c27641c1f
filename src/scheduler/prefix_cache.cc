#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

PrefixCache::PrefixCache(std::int64_t blocks, int block_tokens, std::uint64_t hash_mask)
    : block_tokens_(static_cast<std::size_t>(block_tokens)), hash_mask_(hash_mask) {
  grow(blocks);
}

void PrefixCache::grow(std::int64_t blocks) {
  entry_of_.resize(std::max(entry_of_.size(), static_cast<std::size_t>(blocks)), -1);
}

void PrefixCache::reserve(std::int64_t blocks) {
  const auto count = static_cast<std::size_t>(blocks);
  entry_of_.reserve(count);
  entries_.reserve(count);
  tokens_.reserve(count * block_tokens_);
  by_hash_.reserve(count);
}

std::uint64_t PrefixCache::chain_hash(const CacheScope& scope, EntryId parent,
                                      std::span<const TokenId> tokens) const {
  std::uint64_t hash = parent >= 0
                           ? entry(parent).hash
                           : mix(std::hash<std::string_view>{}(scope.salt), scope.precision_tag);
  for (const TokenId token : tokens) {
    hash = mix(hash, static_cast<std::uint32_t>(token));
  }
  return hash & hash_mask_;
}

bool PrefixCache::orphaned(const Entry& have) const {
  return have.parent >= 0 && entry(have.parent).generation != have.parent_generation;
}

bool PrefixCache::holds(EntryId id, const CacheScope& scope, EntryId parent,
                        std::span<const TokenId> tokens) const {
  const Entry& have = entry(id);
  const std::uint64_t parent_generation = parent >= 0 ? entry(parent).generation : 0;
  return have.parent == parent && have.parent_generation == parent_generation &&
         have.precision_tag == scope.precision_tag && (parent >= 0 || have.salt == scope.salt) &&
         std::equal(tokens.begin(), tokens.end(),
                    tokens_.begin() +
                        static_cast<std::ptrdiff_t>(static_cast<std::size_t>(id) * block_tokens_));
}

std::vector<BlockId> PrefixCache::match(const CacheScope& scope,
                                        std::span<const TokenId> tokens) const {
  std::vector<BlockId> chain;
  EntryId parent = -1;
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) {
    const auto content = tokens.first(block_tokens_);
    const auto found = by_hash_.find(chain_hash(scope, parent, content));
    if (found == by_hash_.end() || !holds(found->second, scope, parent, content)) {
      break;
    }
    parent = found->second;
    chain.push_back(entry(parent).block);
  }
  return chain;
}

BlockId PrefixCache::insert(const CacheScope& scope, BlockId parent_block, BlockId block,
                            std::span<const TokenId> tokens) {
  const EntryId parent = parent_block >= 0 ? entry_of(parent_block) : -1;
  check(tokens.size() == block_tokens_, "only whole blocks are cached");
  check(parent_block < 0 || parent >= 0, "a cached block's parent must be cached");
  check(entry_of(block) < 0, "block is in the prefix cache already");
  const std::uint64_t hash = chain_hash(scope, parent, tokens);
  if (const auto twin = by_hash_.find(hash); twin != by_hash_.end()) {
    if (holds(twin->second, scope, parent, tokens)) {
      return entry(twin->second).block;
    }
    if (!orphaned(entry(twin->second))) {
      return -1;
    }
    forget(entry(twin->second).block);
  }
  const EntryId id = take_entry();
  by_hash_.emplace(hash, id);
  entry_of_[static_cast<std::size_t>(block)] = id;
  entries_[static_cast<std::size_t>(id)] = {
      .hash = hash,
      .generation = ++last_generation_,
      .block = block,
      .parent = parent,
      .parent_generation = parent >= 0 ? entry(parent).generation : 0,
      .precision_tag = scope.precision_tag,
      .salt = parent >= 0 ? std::string() : std::string(scope.salt)};
  std::copy(
      tokens.begin(), tokens.end(),
      tokens_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(id) * block_tokens_));
  return block;
}

void PrefixCache::forget(BlockId block) {
  const EntryId id = std::exchange(entry_of_[static_cast<std::size_t>(block)], -1);
  if (id >= 0) {
    Entry& gone = entries_[static_cast<std::size_t>(id)];
    by_hash_.erase(gone.hash);
    gone = {};
    free_entries_.push_back(id);
  }
}

void PrefixCache::move(BlockId from, BlockId to) {
  check(entry_of(to) < 0, "content moves to a block that holds nothing");
  const EntryId id = std::exchange(entry_of_[static_cast<std::size_t>(from)], -1);
  entry_of_[static_cast<std::size_t>(to)] = id;
  if (id >= 0) {
    entries_[static_cast<std::size_t>(id)].block = to;
  }
}

// A parent is older than its children, so the order of generations has parents first.
std::vector<CachedBlock> PrefixCache::chains(std::uint32_t precision_tag) const {
  std::vector<EntryId> found;
  for (EntryId id = 0; id < static_cast<EntryId>(entries_.size()); ++id) {
    if (entry(id).generation > 0 && entry(id).precision_tag == precision_tag) {
      found.push_back(id);
    }
  }
  std::sort(found.begin(), found.end(),
            [this](EntryId a, EntryId b) { return entry(a).generation < entry(b).generation; });
  std::vector<bool> reached(entries_.size(), false);
  std::vector<CachedBlock> chains;
  for (const EntryId id : found) {
    const Entry& have = entry(id);
    if (have.parent >= 0 && (orphaned(have) || !reached[static_cast<std::size_t>(have.parent)])) {
      continue;
    }
    reached[static_cast<std::size_t>(id)] = true;
    const auto first =
        tokens_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(id) * block_tokens_);
    chains.push_back({.block = have.block,
                      .parent = have.parent >= 0 ? entry(have.parent).block : -1,
                      .salt = have.salt,
                      .tokens = {first, first + static_cast<std::ptrdiff_t>(block_tokens_)}});
  }
  return chains;
}

void PrefixCache::clear() {
  for (BlockId block = 0; block < static_cast<BlockId>(entry_of_.size()); ++block) {
    forget(block);
  }
}

PrefixCache::EntryId PrefixCache::take_entry() {
  if (free_entries_.empty()) {
    entries_.emplace_back();
    tokens_.resize(entries_.size() * block_tokens_);
    return static_cast<EntryId>(entries_.size() - 1);
  }
  const EntryId id = free_entries_.back();
  free_entries_.pop_back();
  return id;
}

}  // namespace protean
