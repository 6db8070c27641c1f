#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "grammar/automaton.h"

namespace protean::grammar {

// A number as JSON.stringify and most others write it.
std::string json_number_text(const boost::json::value& number);

// The parts of JSON that do not depend on a schema, each built once per automaton as something to
// call. Between tokens of JSON there may be up to two spaces or tabs, or one or two line ends and
// up to kMostIndent spaces or tabs after them: enough for every pretty-printer, too little for a
// model to lose itself in; without any_whitespace there is one space after ':' and ',' and
// nothing else.
class JsonText {
 public:
  static constexpr int kMostIndent = 64;

  JsonText(AutomatonBuilder& builder, bool any_whitespace);

  // Whitespace where JSON allows it; after_comma: also where one space is usual.
  void gap(StateId from, StateId to);
  void colon(StateId from, StateId to);  // with what is around it
  void comma(StateId from, StateId to);
  void string(StateId from, std::uint32_t least, std::uint32_t most, StateId to);
  // Numbers have at most 19 digits before the point, 16 after it, and an exponent below 290: all
  // of them finite as double, none without an end.
  void integer(StateId from, StateId to);
  void number(StateId from, StateId to);
  void any_object(StateId from, StateId to);
  void any_array(StateId from, StateId to);
  void any_value(StateId from, StateId to);
  void literal(StateId from, const boost::json::value& value, StateId to);

 private:
  void digits(StateId from, int most, StateId to);
  void string_body(StateId from, std::uint32_t least, std::uint32_t most, StateId to);
  StateId whitespace();
  StateId called_string();
  StateId called_number();
  StateId called_value();

  AutomatonBuilder* builder_;
  bool any_whitespace_;
  std::optional<StateId> whitespace_;
  std::optional<StateId> string_;
  std::optional<StateId> number_;
  std::optional<StateId> value_;
};

}  // namespace protean::grammar
