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

// A token that is found in the text as it is, before any merging (tokenizer.json's added_tokens).
struct AddedToken {
  std::string content;  // not empty
  TokenId id = -1;
  bool special = false;      // found only when the caller asks for it; decodes to nothing
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool single_word = false;  // not inside a word
  bool normalized = false;   // looked for in normalized text, unless special
};

// Finds added tokens in text: leftmost first, the longest of those that start there. A trie over
// bytes, so the cost is that of the text alone. Read-only use is thread-safe.
class TokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    TokenId id;
  };

  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  using Ranges = std::optional<std::span<const TextRange>>;  // none: all of the text

  // The first match that begins at or after `from`. White space that a token strips is part of it.
  // A special token matches only within one of the ranges.
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
