#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "grammar/grammar.h"
#include "grammar/mask_caches.h"
#include "grammar/trimmed.h"

namespace protean {

namespace {

using grammar::Automaton;
using grammar::GrammarMemory;
using grammar::MaskCache;
using grammar::MaskCaches;
using grammar::SetId;
using grammar::TokenTable;

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<MaskCaches> caches, std::shared_ptr<MaskCache> cache)
      : caches_(std::move(caches)), cache_(std::move(cache)) {}

  void allowed_after(std::span<const TokenId> answer, TokenMask mask) override {
    caches_->make_room();
    const std::scoped_lock lock(cache_->mutex());
    if (const std::uint64_t generation = cache_->generation(); generation != generation_) {
      generation_ = generation;
      seen_.clear();
      sets_.clear();
    }
    cache_->mask(after(answer), mask);
  }

 private:
  // Returns the stacks after `answer`. Continues from the longest beginning that it has in common
  // with the answer of the last call.
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
  std::shared_ptr<MaskCache> cache_;
  std::uint64_t generation_ = 0;
  std::vector<TokenId> seen_;
  std::vector<SetId> sets_;  // the stacks after each token of seen_
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

// Returns a byte that no token holds and without which no text can be written. Bisects the missing
// bytes for the first one whose removal, after that of all before it, leaves no text.
std::size_t missing_byte(const Automaton& automaton, const grammar::ByteSet& held) {
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
  std::size_t enough = 0;  // so many bytes can be removed
  std::size_t too_many = missing.size();
  while (too_many - enough > 1) {
    const std::size_t middle = (enough + too_many) / 2;
    (writable_without(middle) ? enough : too_many) = middle;
  }
  return missing[enough];
}

}  // namespace

struct GrammarTokens::Impl {
  std::shared_ptr<const TokenTable> tokens;
  std::shared_ptr<GrammarMemory> memory;
  std::shared_ptr<MaskCaches> caches;

  Result<std::shared_ptr<MaskCache>> compile(const GrammarSource& source, std::string key) const;
};

// Compiles the part of the grammar whose bytes the vocabulary has.
Result<std::shared_ptr<MaskCache>> GrammarTokens::Impl::compile(const GrammarSource& source,
                                                                std::string key) const {
  const Result<std::shared_ptr<const Grammar>> grammar = Grammar::compile(source);
  if (!grammar) {
    return grammar.error();
  }
  std::shared_ptr<const Automaton> automaton = (*grammar)->automaton();
  const bool has_all_bytes = tokens->single_bytes().all();
  if (!has_all_bytes) {
    std::optional<Automaton> part = trimmed(*automaton, tokens->bytes_held());
    if (!part) {
      return unwritable("holds " + shown(missing_byte(*automaton, tokens->bytes_held())));
    }
    automaton = std::make_shared<const Automaton>(*std::move(part));
  }
  auto cache = std::make_shared<MaskCache>(std::move(key), std::move(automaton), tokens, memory);
  if (!has_all_bytes && cache->stuck_at_start()) {
    return unwritable("can be the first");
  }
  return cache;
}

GrammarTokens::GrammarTokens(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids,
                             std::size_t most_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->tokens = std::make_shared<TokenTable>(tokenizer, vocab, std::move(stop_ids));
  impl_->memory =
      std::make_shared<GrammarMemory>(most_bytes, MaskCache::least_bytes(*impl_->tokens));
  impl_->caches = std::make_shared<MaskCaches>(impl_->memory);
}

GrammarTokens::~GrammarTokens() = default;

Result<std::shared_ptr<TokenConstraint>> GrammarTokens::constrain(const GrammarSource& source,
                                                                  const std::string& key) const {
  std::shared_ptr<MaskCache> cache = impl_->caches->find(key);
  if (cache == nullptr) {
    Result<std::shared_ptr<MaskCache>> made = impl_->compile(source, key);
    if (made) {
      made = impl_->caches->add(*std::move(made));
    }
    if (!made) {
      return made.error();
    }
    cache = *std::move(made);
    cache->warm();
  }
  return std::shared_ptr<TokenConstraint>(
      std::make_shared<GrammarConstraint>(impl_->caches, std::move(cache)));
}

bool GrammarTokens::holds(const std::string& key) const {
  return impl_->caches->holds(key);
}

std::size_t GrammarTokens::bytes() const {
  return impl_->memory->bytes();
}

}  // namespace protean
