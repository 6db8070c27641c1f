#include "grammar/token_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tokenizer/utf8.h"

namespace protean::grammar {

namespace {

using Tokens = std::vector<std::pair<std::string_view, TokenId>>;

// Returns the number of characters, or none if the bytes are not whole unescaped characters of a
// JSON string.
std::optional<std::uint32_t> plain_characters(std::string_view bytes) {
  std::uint32_t characters = 0;
  while (!bytes.empty()) {
    const auto first = static_cast<std::uint8_t>(bytes.front());
    const Utf8Step step = utf8_step(bytes);
    if (first < 0x20 || first == '"' || first == '\\' || step.kind != Utf8Step::Kind::kCharacter) {
      return std::nullopt;
    }
    bytes.remove_prefix(static_cast<std::size_t>(step.bytes));
    ++characters;
  }
  return characters;
}

void set_bit(TokenMask mask, TokenId id) {
  mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (static_cast<unsigned>(id) % 64);
}

}  // namespace

struct TokenTable::SortedTokens {
  std::string text;
  std::vector<std::uint32_t> begin;
  std::vector<TokenId> with_bytes;
  std::vector<TokenId> not_plain;
  std::vector<Plain> plain;

  std::string_view bytes(TokenId id) const {
    const auto i = static_cast<std::size_t>(id);
    return std::string_view(text).substr(begin[i], begin[i + 1] - begin[i]);
  }
  Tokens tokens(const std::vector<TokenId>& ids) const {
    Tokens list;
    list.reserve(ids.size());
    for (const TokenId id : ids) {
      list.emplace_back(bytes(id), id);
    }
    return list;
  }
};

TokenTable::SortedTokens TokenTable::sort_tokens(const Tokenizer& tokenizer, int vocab) {
  constexpr std::size_t kLongest = 4096;  // longer tokens are never allowed
  SortedTokens sorted;
  sorted.begin.push_back(0);
  for (TokenId id = 0; id < vocab; ++id) {
    const std::string_view bytes =
        id < tokenizer.vocab_size() ? tokenizer.bytes(id) : std::string_view();
    if (!bytes.empty() && bytes.size() <= kLongest) {
      sorted.text += bytes;
      sorted.with_bytes.push_back(id);
      if (const auto characters = plain_characters(bytes); characters) {
        sorted.plain.push_back({*characters, id});
      } else {
        sorted.not_plain.push_back(id);
      }
    }
    sorted.begin.push_back(static_cast<std::uint32_t>(sorted.text.size()));
  }
  std::sort(sorted.plain.begin(), sorted.plain.end(), [](const Plain& a, const Plain& b) {
    return std::pair(a.characters, a.id) < std::pair(b.characters, b.id);
  });
  return sorted;
}

TokenTable::TokenTable(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids)
    : TokenTable(sort_tokens(tokenizer, vocab), vocab, std::move(stop_ids)) {}

TokenTable::TokenTable(SortedTokens sorted, int vocab, std::vector<TokenId> stop_ids)
    : vocab_(vocab),
      stop_ids_(std::move(stop_ids)),
      all_(sorted.tokens(sorted.with_bytes)),
      not_plain_(sorted.tokens(sorted.not_plain)),
      plain_(std::move(sorted.plain)) {
  std::erase_if(stop_ids_, [vocab](TokenId id) { return id < 0 || id >= vocab; });
  text_ = std::move(sorted.text);
  begin_ = std::move(sorted.begin);
  for (TokenId id = 0; id < vocab_; ++id) {
    for (const char byte : bytes(id)) {
      bytes_held_.set(static_cast<std::uint8_t>(byte));
    }
    if (bytes(id).size() == 1) {
      single_bytes_.set(static_cast<std::uint8_t>(bytes(id).front()));
    }
  }
  std::vector<std::uint64_t> mask(mask_words(), 0);
  std::size_t next = 0;
  for (std::uint32_t n = 0; n < kPlainMasks; ++n) {
    for (; next < plain_.size() && plain_[next].characters <= n; ++next) {
      set_bit(mask, plain_[next].id);
    }
    plain_masks_.push_back(mask);
  }
}

std::string_view TokenTable::bytes(TokenId id) const {
  if (id < 0 || id >= vocab_) {
    return {};
  }
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(text_).substr(begin_[i], begin_[i + 1] - begin_[i]);
}

void TokenTable::add_plain(std::uint32_t most_characters, TokenMask mask) const {
  const std::uint32_t ready = std::min(most_characters, kPlainMasks - 1);
  for (std::size_t word = 0; word < mask.size(); ++word) {
    mask[word] |= plain_masks_[ready][word];
  }
  if (most_characters > ready) {
    const auto first = std::partition_point(plain_.begin(), plain_.end(),
                                            [&](const Plain& p) { return p.characters <= ready; });
    for (auto it = first; it != plain_.end() && it->characters <= most_characters; ++it) {
      set_bit(mask, it->id);
    }
  }
}

}  // namespace protean::grammar
