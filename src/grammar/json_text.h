#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/language.h"

namespace protean::grammar {

// Returns a number as JSON.stringify writes it.
std::string json_number_text(const boost::json::value& number);

// A JsonWhitespace whose patterns are parsed.
struct JsonGaps {
  Language after_separator;
  Language elsewhere;

  // Fails as parse_regex() does, and with kInvalidArgument if a pattern matches no white space.
  static Result<JsonGaps> parse(const JsonWhitespace& whitespace);
};

// Emits the parts of JSON that do not depend on a schema. Parts of some size are emitted once per
// automaton and called.
class JsonText {
 public:
  // Refers to the builder.
  JsonText(AutomatonBuilder& builder, JsonGaps gaps);

  // Emits the white space before a separator or next to a bracket.
  void gap(StateId from, StateId to);
  // Emit a separator and the white space around it.
  void colon(StateId from, StateId to) { separator(from, ':', to); }
  void comma(StateId from, StateId to) { separator(from, ',', to); }
  void string(StateId from, std::uint32_t least, std::uint32_t most, StateId to);
  // Numbers have at most 19 digits before the point, 16 after it and an exponent below 290, so that
  // they are finite as doubles and come to an end.
  void integer(StateId from, StateId to);
  void number(StateId from, StateId to);
  void any_object(StateId from, StateId to);
  void any_array(StateId from, StateId to);
  void any_value(StateId from, StateId to);
  void literal(StateId from, const boost::json::value& value, StateId to);

 private:
  void separator(StateId from, char character, StateId to);
  void whitespace(const Language& texts, std::optional<StateId>& called, StateId from, StateId to);
  void digits(StateId from, int most, StateId to);
  void string_body(StateId from, std::uint32_t least, std::uint32_t most, StateId to);
  StateId called_string();
  StateId called_number();
  StateId called_value();

  AutomatonBuilder* builder_;
  JsonGaps gaps_;
  std::optional<StateId> after_separator_;
  std::optional<StateId> elsewhere_;
  std::optional<StateId> string_;
  std::optional<StateId> number_;
  std::optional<StateId> value_;
};

}  // namespace protean::grammar
