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

// A vocabulary arranged for walks, with what is worth knowing of it before any grammar: within a
// JSON string most tokens may come, and those need no walk. Immutable, any thread.
class TokenTable {
 public:
  TokenTable(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids);
  TokenTable(const TokenTable&) = delete;
  TokenTable& operator=(const TokenTable&) = delete;

  int vocab() const { return vocab_; }
  std::size_t mask_words() const { return token_mask_words(vocab_); }
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }
  bool is_stop(TokenId id) const;
  std::string_view bytes(TokenId id) const;  // empty for a special token or none at all
  const TokenTrie& all() const { return all_; }
  // The tokens that are not made of whole characters which a JSON string has as they are.
  const TokenTrie& not_plain() const { return not_plain_; }
  std::uint32_t longest_bytes() const { return all_.deepest(); }
  const ByteSet& bytes_held() const { return bytes_held_; }      // by any token
  const ByteSet& single_bytes() const { return single_bytes_; }  // that are tokens of their own

  // ORs into `mask` the plain tokens of at most so many characters.
  void add_plain(std::uint32_t most_characters, TokenMask mask) const;

 private:
  static constexpr std::uint32_t kPlainMasks = 33;

  struct Plain {
    std::uint32_t characters = 0;
    TokenId id = 0;
  };
  struct Parts;  // what the constructor sorts tokens into

  static Parts sort_tokens(const Tokenizer& tokenizer, int vocab);
  TokenTable(Parts parts, int vocab, std::vector<TokenId> stop_ids);

  int vocab_;
  std::vector<TokenId> stop_ids_;
  std::string text_;
  std::vector<std::uint32_t> begin_;
  ByteSet bytes_held_;
  ByteSet single_bytes_;
  TokenTrie all_;
  TokenTrie not_plain_;
  std::vector<Plain> plain_;                             // by characters
  std::vector<std::vector<std::uint64_t>> plain_masks_;  // [n]: those of at most n characters
};

}  // namespace protean::grammar
