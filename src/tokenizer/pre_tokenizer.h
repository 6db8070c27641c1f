#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/regex.h"

namespace protean {

// Cuts text into the pieces inside which tokens are merged: the operations of a tokenizer.json
// pre_tokenizer, each applied to every piece of the one before. Text stays plain bytes; only
// vocabularies use the byte alphabet (byte_alphabet.h).
class PreTokenizer {
 public:
  // What happens to a match. The text between matches is always a piece.
  enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

  struct Split {
    Regex pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // matches are the text between the pattern's matches
    friend bool operator==(const Split&, const Split&) = default;
  };
  struct PrefixSpace {  // adds a space before a piece that has none
    friend bool operator==(const PrefixSpace&, const PrefixSpace&) = default;
  };
  struct Metaspace {
    enum class Prepend { kNever, kFirst, kAlways };
    std::string replacement;  // replaces a space
    Prepend prepend = Prepend::kAlways;
    friend bool operator==(const Metaspace&, const Metaspace&) = default;
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;

  void add(Step step) { steps_.push_back(std::move(step)); }

  // The pieces, as views into the text or into `changed` pieces that are owned here.
  struct Pieces {
    std::vector<std::string_view> pieces;
    std::deque<std::string> changed;
  };
  // `at_start`: the text is at the beginning of the whole input.
  Pieces split(std::string_view text, bool at_start) const;

  friend bool operator==(const PreTokenizer&, const PreTokenizer&) = default;

 private:
  std::vector<Step> steps_;
};

}  // namespace protean
