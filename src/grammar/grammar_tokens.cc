#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "grammar/compiled.h"
#include "grammar/grammar.h"
#include "grammar/mask_caches.h"
#include "grammar/trimmed.h"

namespace protean {

namespace {

using grammar::MaskCache;
using grammar::MaskCaches;
using grammar::SetId;

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

std::string shown(std::size_t byte) {
  if (byte <= ' ' || byte > '~') {
    return fmt::format("the byte 0x{:02X}", byte);
  }
  return byte == '"' ? "'\"'" : fmt::format("\"{}\"", static_cast<char>(byte));
}

Error unwritable(std::string_view what_no_token_does) {
  return make_error(ErrorCode::kUnsupported,
                    "this model's vocabulary cannot write any text of this form: no token of it "
                    "{}; use another model, or ask for text that needs no such token",
                    what_no_token_does);
}

// One of the bytes that no token holds and whose lack leaves nothing to be written: they are taken
// away one more at a time, and it is the one too many.
std::size_t missing_byte(const grammar::Automaton& automaton, const grammar::ByteSet& held) {
  std::vector<std::size_t> missing;
  for (std::size_t byte = 0; byte < held.size(); ++byte) {
    if (!held[byte]) {
      missing.push_back(byte);
    }
  }
  const auto writable_without = [&](std::size_t count) {
    grammar::ByteSet bytes = grammar::ByteSet().set();
    for (std::size_t i = 0; i < count; ++i) {
      bytes.reset(missing[i]);
    }
    return grammar::trimmed(automaton, bytes).has_value();
  };
  std::size_t enough = 0;  // can still be taken away
  std::size_t too_many = missing.size();
  while (too_many - enough > 1) {
    const std::size_t middle = (enough + too_many) / 2;
    (writable_without(middle) ? enough : too_many) = middle;
  }
  return missing[enough];
}

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

Result<std::shared_ptr<const Grammar>> GrammarTokens::prepare(
    std::shared_ptr<const Grammar> grammar) const {
  const grammar::TokenTable& tokens = impl_->caches->tokens();
  const bool has_all_bytes = tokens.single_bytes().all();
  if (!has_all_bytes) {
    const grammar::Automaton& whole = *grammar->automaton_->automaton;
    auto part = grammar::trimmed(whole, tokens.bytes_held());
    if (!part) {
      return unwritable("holds " + shown(missing_byte(whole, tokens.bytes_held())));
    }
    if (*part != whole) {
      auto automaton = std::make_shared<const grammar::Automaton>(*std::move(part));
      const std::uint64_t hash = automaton->hash();
      grammar =
          std::shared_ptr<const Grammar>(new Grammar(std::make_unique<const Grammar::Automaton>(
              Grammar::Automaton{std::move(automaton), hash})));
    }
  }
  const auto cache = impl_->caches->find(grammar->automaton_->automaton, grammar->automaton_->hash);
  if (!has_all_bytes && cache->stuck_at_start()) {
    return unwritable("can be the first");
  }
  cache->warm();
  return grammar;
}

std::shared_ptr<TokenConstraint> GrammarTokens::constrain(
    std::shared_ptr<const Grammar> grammar) const {
  return std::make_shared<GrammarConstraint>(impl_->caches, grammar->automaton_->automaton,
                                             grammar->automaton_->hash);
}

}  // namespace protean
