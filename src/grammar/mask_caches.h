#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "grammar/mask_cache.h"

namespace protean::grammar {

// The caches of one vocabulary's grammars that were used last: as many as memory allows, so that
// what was worked out for a schema is still there when its turn comes again. Two grammars that are
// the same automaton share one. Any thread.
class MaskCaches {
 public:
  static constexpr std::size_t kMost = 256;
  static constexpr std::size_t kMostBytes = std::size_t{512} << 20;  // of all but the last used

  explicit MaskCaches(std::shared_ptr<const TokenTable> tokens) : tokens_(std::move(tokens)) {}

  const TokenTable& tokens() const { return *tokens_; }

  std::shared_ptr<MaskCache> find(const std::shared_ptr<const Automaton>& automaton,
                                  std::uint64_t hash);
  // A fresh cache in the place of one that is full.
  std::shared_ptr<MaskCache> replace(const std::shared_ptr<const Automaton>& automaton,
                                     std::uint64_t hash, const MaskCache* full);

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::shared_ptr<const Automaton> automaton;
    std::shared_ptr<MaskCache> cache;
  };

  void forget_oldest();

  std::shared_ptr<const TokenTable> tokens_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace protean::grammar
