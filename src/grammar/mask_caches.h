#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "grammar/grammar_memory.h"
#include "grammar/mask_cache.h"

namespace protean::grammar {

// The mask caches of one vocabulary's grammars by key. If the memory budget is exceeded, caches
// that only this class refers to are dropped, the least recently used first. Any thread.
class MaskCaches {
 public:
  explicit MaskCaches(std::shared_ptr<GrammarMemory> memory) : memory_(std::move(memory)) {}

  bool holds(const std::string& key) const;
  // Returns null if no cache has this key.
  std::shared_ptr<MaskCache> find(const std::string& key);
  // Returns the cache to use for its key: `cache`, or one that another thread added first. Fails
  // with kExhausted if the grammar alone is too large, with kUnavailable if those in use are
  // or would leave each other too few masks.
  Result<std::shared_ptr<MaskCache>> add(std::shared_ptr<MaskCache> cache);
  // Drops unused caches until the budget is kept or all are used.
  void make_room();

 private:
  using Entries = std::list<std::shared_ptr<MaskCache>>;

  std::shared_ptr<MaskCache> find_locked(const std::string& key);
  template <class Enough>
  void drop_unused(Enough enough);

  const std::shared_ptr<GrammarMemory> memory_;
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<std::string_view, Entries::iterator> by_key_;
};

}  // namespace protean::grammar
