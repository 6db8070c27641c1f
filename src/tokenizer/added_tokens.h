#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/text_range.h"
#include "tokenizer/pair_table.h"

namespace protean {

// A token that is found in the text before any merging (tokenizer.json's added_tokens).
struct AddedToken {
  std::string content;  // not empty
  TokenId id = -1;
  bool special = false;      // found only on request; decodes to nothing
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool single_word = false;  // does not match inside a word
  bool normalized = false;   // matches normalized text, unless special

  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

// Finds added tokens in text: leftmost first, and of several at one place the longest. Uses a trie
// over bytes, so the time does not depend on the number of tokens. Read-only use is thread-safe.
class TokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    TokenId id;
  };

  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  using Ranges = std::optional<std::span<const TextRange>>;  // without a value: all of the text

  // Returns the first match that begins at or after `from`, with the white space that it strips. A
  // special token matches only within one of the ranges.
  std::optional<Match> find(std::string_view text, std::size_t from,
                            const Ranges& special_in) const;

 private:
  std::optional<Match> longest_at(std::string_view text, std::size_t at,
                                  const Ranges& special_in) const;
  Match with_stripped_space(std::string_view text, std::size_t from, Match match) const;

  std::vector<AddedToken> tokens_;
  std::vector<int> token_at_node_ = {-1};
  PairTable children_;  // (node, byte) -> node
  bool starts_[256] = {};
};

}  // namespace protean
