#include "grammar/mask_caches.h"

#include <iterator>
#include <utility>

#include "base/units.h"

namespace protean::grammar {

bool MaskCaches::holds(const std::string& key) const {
  const std::scoped_lock lock(mutex_);
  return by_key_.contains(key);
}

std::shared_ptr<MaskCache> MaskCaches::find_locked(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found->second);
  return *found->second;
}

std::shared_ptr<MaskCache> MaskCaches::find(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  return find_locked(key);
}

Result<std::shared_ptr<MaskCache>> MaskCaches::add(std::shared_ptr<MaskCache> cache) {
  const std::size_t most = memory_->most_grammar_bytes();
  if (cache->grammar_bytes() > most) {
    return make_error(
        ErrorCode::kExhausted,
        "the grammar takes {}, and all grammars may take {}; make it smaller or raise "
        "--grammar-memory",
        format_bytes(static_cast<std::int64_t>(cache->grammar_bytes())),
        format_bytes(static_cast<std::int64_t>(most)));
  }
  const std::scoped_lock lock(mutex_);
  if (std::shared_ptr<MaskCache> first = find_locked(cache->key())) {
    return first;
  }
  drop_unused([&] { return memory_->fits_grammars() && !memory_->exceeded(); });
  if (memory_->grammar_bytes() > most) {
    return make_error(ErrorCode::kUnavailable,
                      "the grammars of running requests take all of the {} that grammars may take; "
                      "try again later or raise --grammar-memory",
                      format_bytes(static_cast<std::int64_t>(most)));
  }
  if (!memory_->fits_grammars()) {
    return make_error(
        ErrorCode::kUnavailable,
        "the grammars of running requests leave too little memory for the token masks "
        "of another one; try again later or raise --grammar-memory");
  }
  entries_.push_front(cache);
  by_key_.emplace(cache->key(), entries_.begin());
  return cache;
}

void MaskCaches::make_room() {
  if (memory_->exceeded()) {
    const std::scoped_lock lock(mutex_);
    drop_unused([&] { return !memory_->exceeded(); });
  }
}

template <class Enough>
void MaskCaches::drop_unused(Enough enough) {
  for (auto it = entries_.end(); it != entries_.begin() && !enough();) {
    --it;
    if (it->use_count() == 1) {
      by_key_.erase((*it)->key());
      it = entries_.erase(it);
    }
  }
}

}  // namespace protean::grammar
