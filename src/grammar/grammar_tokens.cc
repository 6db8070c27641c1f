#include <algorithm>
#include <list>
#include <mutex>

#include "base/check.h"
#include "grammar/compiled.h"
#include "grammar/grammar.h"
#include "grammar/mask_cache.h"

namespace protean {

namespace {

using grammar::MaskCache;
using grammar::SetId;

// The caches of the grammars used last. Two grammars that are the same automaton share one.
class MaskCaches {
 public:
  explicit MaskCaches(std::shared_ptr<const grammar::TokenTable> tokens)
      : tokens_(std::move(tokens)) {}

  const grammar::TokenTable& tokens() const { return *tokens_; }

  std::shared_ptr<MaskCache> find(const std::shared_ptr<const grammar::Automaton>& automaton,
                                  std::uint64_t hash) {
    const std::scoped_lock lock(mutex_);
    auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.hash == hash && (entry.automaton == automaton || *entry.automaton == *automaton);
    });
    if (it == entries_.end()) {
      entries_.push_front({hash, automaton, std::make_shared<MaskCache>(automaton, tokens_)});
      if (entries_.size() > kMostGrammars) {
        entries_.pop_back();
      }
    } else {
      entries_.splice(entries_.begin(), entries_, it);
    }
    return entries_.front().cache;
  }

  // A fresh cache in the place of one that is full.
  std::shared_ptr<MaskCache> replace(const std::shared_ptr<const grammar::Automaton>& automaton,
                                     std::uint64_t hash, const MaskCache* full) {
    {
      const std::scoped_lock lock(mutex_);
      entries_.remove_if([full](const Entry& entry) { return entry.cache.get() == full; });
    }
    return find(automaton, hash);
  }

 private:
  static constexpr std::size_t kMostGrammars = 16;

  struct Entry {
    std::uint64_t hash = 0;
    std::shared_ptr<const grammar::Automaton> automaton;
    std::shared_ptr<MaskCache> cache;
  };

  std::shared_ptr<const grammar::TokenTable> tokens_;
  std::mutex mutex_;
  std::list<Entry> entries_;
};

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<MaskCaches> caches,
                    std::shared_ptr<const grammar::Automaton> automaton, std::uint64_t hash)
      : caches_(std::move(caches)),
        automaton_(std::move(automaton)),
        hash_(hash),
        cache_(caches_->find(automaton_, hash_)) {}

  void allowed_after(std::span<const TokenId> answer, TokenMask mask) override {
    check(mask.size() == caches_->tokens().mask_words(), "a mask has the vocabulary's words");
    std::unique_lock lock(cache_->mutex());
    if (cache_->full()) {
      lock.unlock();
      cache_ = caches_->replace(automaton_, hash_, cache_.get());
      seen_.clear();
      sets_.clear();
      lock = std::unique_lock(cache_->mutex());
    }
    cache_->mask(after(answer), mask);
  }

 private:
  // Goes on from what was seen before, as far as the answer is still the same.
  SetId after(std::span<const TokenId> answer) {
    const auto same = static_cast<std::size_t>(
        std::mismatch(seen_.begin(), seen_.end(), answer.begin(), answer.end()).first -
        seen_.begin());
    seen_.resize(same);
    sets_.resize(same);
    for (const TokenId token : answer.subspan(same)) {
      const SetId before = sets_.empty() ? cache_->start() : sets_.back();
      sets_.push_back(cache_->advance(before, token));
      seen_.push_back(token);
    }
    return sets_.empty() ? cache_->start() : sets_.back();
  }

  std::shared_ptr<MaskCaches> caches_;
  std::shared_ptr<const grammar::Automaton> automaton_;
  std::uint64_t hash_;
  std::shared_ptr<MaskCache> cache_;
  std::vector<TokenId> seen_;
  std::vector<SetId> sets_;  // after each of them
};

}  // namespace

struct GrammarTokens::Impl {
  std::shared_ptr<MaskCaches> caches;
};

GrammarTokens::GrammarTokens(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids)
    : impl_(std::make_unique<Impl>()) {
  impl_->caches = std::make_shared<MaskCaches>(
      std::make_shared<grammar::TokenTable>(tokenizer, vocab, std::move(stop_ids)));
}

GrammarTokens::~GrammarTokens() = default;

std::shared_ptr<TokenConstraint> GrammarTokens::constrain(
    std::shared_ptr<const Grammar> grammar) const {
  return std::make_shared<GrammarConstraint>(impl_->caches, grammar->automaton_->automaton,
                                             grammar->automaton_->hash);
}

}  // namespace protean
