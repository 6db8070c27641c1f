#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace protean {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

PrefixCache::PrefixCache(std::int64_t blocks, int block_tokens, std::uint64_t hash_mask)
    : block_tokens_(static_cast<std::size_t>(block_tokens)),
      hash_mask_(hash_mask),
      entries_(static_cast<std::size_t>(blocks)),
      tokens_(entries_.size() * block_tokens_) {}

std::uint64_t PrefixCache::chain_hash(const CacheScope& scope, BlockId parent,
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

bool PrefixCache::holds(BlockId block, const CacheScope& scope, BlockId parent,
                        std::span<const TokenId> tokens) const {
  const Entry& have = entry(block);
  const std::uint64_t parent_generation = parent >= 0 ? entry(parent).generation : 0;
  return have.parent == parent && have.parent_generation == parent_generation &&
         have.precision_tag == scope.precision_tag && (parent >= 0 || have.salt == scope.salt) &&
         std::equal(tokens.begin(), tokens.end(),
                    tokens_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block) *
                                                                  block_tokens_));
}

std::vector<BlockId> PrefixCache::match(const CacheScope& scope,
                                        std::span<const TokenId> tokens) const {
  std::vector<BlockId> chain;
  BlockId parent = -1;
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) {
    const auto content = tokens.first(block_tokens_);
    const auto found = by_hash_.find(chain_hash(scope, parent, content));
    if (found == by_hash_.end() || !holds(found->second, scope, parent, content)) {
      break;
    }
    parent = found->second;
    chain.push_back(parent);
  }
  return chain;
}

BlockId PrefixCache::insert(const CacheScope& scope, BlockId parent, BlockId block,
                            std::span<const TokenId> tokens) {
  check(tokens.size() == block_tokens_, "only whole blocks are cached");
  check(parent < 0 || entry(parent).generation != 0, "a cached block's parent must be cached");
  check(entry(block).generation == 0, "block is in the prefix cache already");
  const std::uint64_t hash = chain_hash(scope, parent, tokens);
  const auto [place, fresh] = by_hash_.try_emplace(hash, block);
  if (!fresh) {
    if (holds(place->second, scope, parent, tokens)) {
      return place->second;
    }
    if (!orphaned(entry(place->second))) {
      return -1;
    }
    entries_[static_cast<std::size_t>(place->second)] = {};
    place->second = block;
  }
  entries_[static_cast<std::size_t>(block)] = {
      .hash = hash,
      .generation = ++last_generation_,
      .parent = parent,
      .parent_generation = parent >= 0 ? entry(parent).generation : 0,
      .precision_tag = scope.precision_tag,
      .salt = parent >= 0 ? std::string() : std::string(scope.salt)};
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() +
                static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block) * block_tokens_));
  return block;
}

void PrefixCache::forget(BlockId block) {
  Entry& gone = entries_[static_cast<std::size_t>(block)];
  if (gone.generation != 0) {
    by_hash_.erase(gone.hash);
    gone = {};
  }
}

}  // namespace protean
