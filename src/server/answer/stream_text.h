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

// Finds the first stop string in a text that comes in pieces: the one that ends first, and of
// several the longest. The result does not depend on where the text is cut. Holds back bytes that
// may belong to a stop string. Costs O(stop strings) per byte. Copies share the compiled stop
// strings, since one call may have a thousand choices.
class StopMatcher {
 public:
  // `keep` leaves the stop string in the text. Stop strings are not empty.
  StopMatcher(std::vector<std::string> stops, bool keep);

  // Returns what is certain to be text. After a match, returns nothing.
  std::string push(std::string_view piece);
  // Returns what was held back, at the end of the text.
  std::string finish();
  // Returns the stop string that was found, if any.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  // A stop string with its Knuth-Morris-Pratt table: the length to fall back to from each length.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> fallback;
    bool advance(std::size_t& length, char byte) const;  // true if the whole string has matched
  };

  bool keep_;
  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<std::size_t> lengths_;  // matched so far, of each pattern
  std::string held_;
  std::optional<std::string> matched_;
};

// Special tokens whose names are part of the text.
struct ShownTokens {
  bool all = false;
  std::vector<TokenId> some;

  bool hold(TokenId token) const {
    return all || std::find(some.begin(), some.end(), token) != some.end();
  }
};

// Turns tokens into whole characters, up to the first stop string.
class StreamText {
 public:
  StreamText(const Tokenizer& tokenizer, StopMatcher matcher, ShownTokens shown = {},
             bool at_text_start = false);

  std::string push(TokenId token) { return matcher_.push(decoded(token)); }
  // Like push(), but ignores stop strings.
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
