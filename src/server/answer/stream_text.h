#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Finds the first stop string in a text that comes in pieces. First is what ends first, the longest
// of those; so the answer does not depend on how the text was cut. Bytes that may yet turn out to
// belong to a stop string are held back. Costs O(stop strings) per byte. Copies share what was made
// of the stop strings: one call may have a thousand choices.
class StopMatcher {
 public:
  // `keep` leaves the stop string in the text. Stop strings are not empty.
  StopMatcher(std::vector<std::string> stops, bool keep);

  // What is now sure to be text. Nothing after the match.
  std::string push(std::string_view piece);
  // What was held back, when no more text comes.
  std::string finish();
  // The stop string found, if any.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  // Knuth-Morris-Pratt: where to fall back to from each length that has matched.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> fallback;
    bool advance(std::size_t& length, char byte) const;  // true: the whole has matched
  };

  bool keep_;
  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<std::size_t> lengths_;  // how far each pattern has come
  std::string held_;
  std::optional<std::string> matched_;
};

// Special tokens that are part of the text, by their names.
struct ShownTokens {
  bool all = false;
  std::vector<TokenId> some;

  bool hold(TokenId token) const {
    return all || std::find(some.begin(), some.end(), token) != some.end();
  }
};

// The text of one choice, token by token: whole characters, cut at the first stop string.
class StreamText {
 public:
  StreamText(const Tokenizer& tokenizer, StopMatcher matcher, ShownTokens shown = {},
             bool at_text_start = false);

  std::string push(TokenId token) { return matcher_.push(decoded(token)); }
  // In this one no stop string is looked for.
  std::string push_unstopped(TokenId token) { return matcher_.finish() + decoded(token); }
  std::string finish();
  const std::optional<std::string>& stopped_by() const { return matcher_.matched(); }

 private:
  std::string decoded(TokenId token);

  const Tokenizer* tokenizer_;
  ShownTokens shown_;
  StreamDecoder decoder_;
  StopMatcher matcher_;
};

}  // namespace protean
