#include "grammar/mask_caches.h"

#include <algorithm>
#include <iterator>

namespace protean::grammar {

std::shared_ptr<MaskCache> MaskCaches::find(const std::shared_ptr<const Automaton>& automaton,
                                            std::uint64_t hash) {
  const std::scoped_lock lock(mutex_);
  const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.hash == hash && (entry.automaton == automaton || *entry.automaton == *automaton);
  });
  if (it == entries_.end()) {
    entries_.push_front({hash, automaton, std::make_shared<MaskCache>(automaton, tokens_)});
    forget_oldest();
  } else {
    entries_.splice(entries_.begin(), entries_, it);
  }
  return entries_.front().cache;
}

std::shared_ptr<MaskCache> MaskCaches::replace(const std::shared_ptr<const Automaton>& automaton,
                                               std::uint64_t hash, const MaskCache* full) {
  {
    const std::scoped_lock lock(mutex_);
    entries_.remove_if([full](const Entry& entry) { return entry.cache.get() == full; });
  }
  return find(automaton, hash);
}

void MaskCaches::forget_oldest() {
  std::size_t bytes = 0;
  std::size_t kept = 0;
  auto it = std::next(entries_.begin());
  for (; it != entries_.end(); ++it) {
    bytes += it->cache->bytes();
    if (++kept == kMost || bytes > kMostBytes) {
      break;
    }
  }
  entries_.erase(it, entries_.end());
}

}  // namespace protean::grammar
