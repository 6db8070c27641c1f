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
// pre_tokenizer, each applied to every piece the ones before it left. Text stays plain bytes; that
// byte-level BPE writes bytes in an alphabet of its own is the vocabulary's affair (byte_alphabet).
class PreTokenizer {
 public:
  // What becomes of a match; the text between matches is always a piece.
  enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

  struct Split {
    Regex pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // the text between matches plays the match
  };
  struct PrefixSpace {};  // a space before a piece that has none
  struct Metaspace {
    enum class Prepend { kNever, kFirst, kAlways };
    std::string replacement;  // for a space
    Prepend prepend = Prepend::kAlways;
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;

  void add(Step step) { steps_.push_back(std::move(step)); }

  // Owns the pieces that an operation had to change; the views in pieces point into text or here.
  struct Pieces {
    std::vector<std::string_view> pieces;
    std::deque<std::string> changed;
  };
  // at_start: text begins where the whole input begins.
  Pieces split(std::string_view text, bool at_start) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace protean
