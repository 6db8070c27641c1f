#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/token_constraint.h"
#include "grammar/token_trie.h"
#include "grammar/trimmed.h"
#include "tokenizer/tokenizer.h"

namespace protean::grammar {

// A vocabulary arranged for walks. Tokens of whole characters that a JSON string holds unescaped
// are called plain: their masks are made in advance, because within a string most tokens may come.
// Immutable; any thread may use it.
class TokenTable {
 public:
  TokenTable(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids);
  TokenTable(const TokenTable&) = delete;
  TokenTable& operator=(const TokenTable&) = delete;

  int vocab() const { return vocab_; }
  std::size_t mask_words() const { return token_mask_words(vocab_); }
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }
  std::string_view bytes(TokenId id) const;  // empty for special tokens and unknown ids
  const TokenTrie& all() const { return all_; }
  // The tokens that are not plain.
  const TokenTrie& not_plain() const { return not_plain_; }
  std::uint32_t longest_bytes() const { return all_.deepest(); }
  const ByteSet& bytes_held() const { return bytes_held_; }      // bytes that occur in tokens
  const ByteSet& single_bytes() const { return single_bytes_; }  // bytes that are tokens

  // Adds to `mask` the plain tokens of at most so many characters.
  void add_plain(std::uint32_t most_characters, TokenMask mask) const;

 private:
  static constexpr std::uint32_t kPlainMasks = 33;

  struct Plain {
    std::uint32_t characters = 0;
    TokenId id = 0;
  };
  struct SortedTokens;  // the tokens as sort_tokens() sorts them

  static SortedTokens sort_tokens(const Tokenizer& tokenizer, int vocab);
  TokenTable(SortedTokens sorted, int vocab, std::vector<TokenId> stop_ids);

  int vocab_;
  std::vector<TokenId> stop_ids_;
  std::string text_;
  std::vector<std::uint32_t> begin_;
  ByteSet bytes_held_;
  ByteSet single_bytes_;
  TokenTrie all_;
  TokenTrie not_plain_;
  std::vector<Plain> plain_;                             // ascending by characters
  std::vector<std::vector<std::uint64_t>> plain_masks_;  // [n]: of at most n characters
};

}  // namespace protean::grammar
