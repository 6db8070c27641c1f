#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace protean {

// A compiled pattern of a tokenizer file: Oniguruma or Rust syntax, where PCRE2 gives it the same
// meaning. Immutable and cheap to copy; any thread may use it.
class Regex {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
  };

  static Result<Regex> compile(std::string_view pattern);
  // Returns the pattern that matches exactly this text.
  static Result<Regex> literal(std::string_view text);

  // Appends the matches in `text` from left to right. They do not overlap and may be empty. Bytes
  // that are not UTF-8 match nothing and end the context on both sides. A pattern that reaches the
  // match limit finds nothing more, so that a hostile one cannot occupy a thread.
  void find_all(std::string_view text, std::vector<Match>& matches) const;

  // Returns true if both were compiled from the same pattern.
  friend bool operator==(const Regex& one, const Regex& other);

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  void find_in_valid(std::string_view text, std::size_t offset, std::vector<Match>& matches) const;

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace protean
