#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/charsmap.h"
#include "tokenizer/regex.h"

namespace protean {

// Changes text before it is cut into pieces: the operations of a tokenizer.json normalizer, in
// order. Keeps bytes that are not UTF-8.
class Normalizer {
 public:
  enum class Unicode { kNfc, kNfd, kNfkc, kNfkd, kLowercase };
  struct Prepend {
    std::string text;  // not before an empty text
    friend bool operator==(const Prepend&, const Prepend&) = default;
  };
  struct Replace {
    std::string from;  // not empty
    std::string to;
    friend bool operator==(const Replace&, const Replace&) = default;
  };
  struct ReplaceMatches {
    Regex pattern;
    std::string to;
    friend bool operator==(const ReplaceMatches&, const ReplaceMatches&) = default;
  };
  // How a text that a map replaces is found: as SentencePiece does, or as Hugging Face's
  // tokenizers.
  enum class Match { kLongest, kClusters };
  struct Characters {
    Charsmap map;
    Match match = Match::kLongest;
    friend bool operator==(const Characters&, const Characters&) = default;
  };
  using Step = std::variant<Unicode, Prepend, Replace, ReplaceMatches, Characters>;

  void add(Step step);

  std::string apply(std::string_view text) const;
  // Applies all steps but Prepend: to the form that an added token has inside a normalized text.
  std::string apply_inside(std::string_view text) const;
  bool empty() const { return steps_.empty(); }
  // Returns a bound of how many times longer, in bytes, the replacements make a text.
  double growth() const;

  friend bool operator==(const Normalizer&, const Normalizer&) = default;

 private:
  std::string run(std::string_view text, bool prepend) const;

  std::vector<Step> steps_;
};

}  // namespace protean
