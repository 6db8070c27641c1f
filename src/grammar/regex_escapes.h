#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "grammar/code_points.h"
#include "grammar/regex_parser.h"

namespace protean::grammar {

CharacterClass line_ends(RegexDialect dialect);

// Reads a pattern from the left and keeps the first error. Returns empty values after an error.
class RegexReader {
 public:
  // The pattern is valid UTF-8 and outlives the reader.
  RegexReader(std::string_view pattern, RegexDialect dialect)
      : pattern_(pattern), dialect_(dialect) {}

  bool at_end() const { return position_ == pattern_.size(); }
  bool looking_at(char next) const { return !at_end() && pattern_[position_] == next; }
  bool accept(char next);
  bool accept(std::string_view next);
  CodePoint character();                                    // any character
  std::optional<std::uint32_t> number(std::uint32_t most);  // none if there is no digit
  CharacterClass escape(bool in_brackets);                  // after '\'
  CharacterClass bracket_class();                           // after '['

  std::size_t position() const { return position_; }
  void rewind(std::size_t position) { position_ = position; }

  void fail(std::string_view what);
  void refuse(std::string_view feature);
  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }

 private:
  CodePoint hex(int digits);
  CodePoint braced_hex();
  CodePoint unicode_escape();
  CharacterClass property(bool negated);
  CharacterClass single(CodePoint character) { return CharacterClass::of(character); }
  CharacterClass bracket_item(bool& is_class);

  std::string_view pattern_;
  RegexDialect dialect_;
  std::size_t position_ = 0;
  std::optional<Error> error_;
};

}  // namespace protean::grammar
