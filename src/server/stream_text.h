#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Finds the first stop string in a text that comes in pieces. First is what ends first, the longest
// of those; so the answer does not depend on how the text was cut. Bytes that may yet turn out to
// belong to a stop string are held back. Costs O(stop strings) per byte.
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
  // Knuth-Morris-Pratt: how far this stop string has come, and where to fall back to.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> fallback;
    std::size_t length = 0;
    bool advance(char byte);
  };

  const bool keep_;
  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<std::string> matched_;
};

// The text of one choice, token by token: whole characters, cut at the first stop string.
class StreamText {
 public:
  struct Options {
    std::vector<std::string> stops;
    bool keep_stop = false;
    bool at_text_start = false;
  };
  StreamText(const Tokenizer& tokenizer, Options options);

  std::string push(TokenId token) { return matcher_.push(decoder_.push(token)); }
  std::string finish();
  const std::optional<std::string>& stopped_by() const { return matcher_.matched(); }

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
};

}  // namespace protean
