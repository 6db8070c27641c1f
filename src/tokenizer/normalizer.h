#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/regex.h"

namespace protean {

// What happens to text before it is cut into pieces: the operations of a tokenizer.json normalizer,
// in order. Bytes that are not UTF-8 pass through untouched.
class Normalizer {
 public:
  enum class Unicode { kNfc, kNfd, kNfkc, kNfkd, kLowercase };
  struct Prepend {
    std::string text;  // not before an empty text
  };
  struct Replace {
    std::string from;  // not empty
    std::string to;
  };
  struct ReplaceMatches {
    Regex pattern;
    std::string to;
  };
  using Step = std::variant<Unicode, Prepend, Replace, ReplaceMatches>;

  void add(Step step) { steps_.push_back(std::move(step)); }

  std::string apply(std::string_view text) const;
  // The same without Prepend: how the content of an added token looks inside a normalized text.
  std::string apply_inside(std::string_view text) const;
  bool empty() const { return steps_.empty(); }
  // At most this many times longer, in bytes, do the replacements make a text.
  double growth() const;

 private:
  std::string run(std::string_view text, bool prepend) const;

  std::vector<Step> steps_;
};

}  // namespace protean
