#pragma once

// Values as text: str(), repr() and json.dumps() of Python.

#include <string>
#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

std::string float_text(double number);
void write_text(Runtime& runtime, const Value& value, std::string& out);
void write_text(Runtime& runtime, const Value& value, MarkedText& out);
void write_repr(Runtime& runtime, const Value& value, std::string& out);
// str(value), without a copy if the value is text.
Value to_string(Runtime& runtime, const Value& value);
std::string_view text_of(Runtime& runtime, const Value& value);
void write_escaped(std::string_view text, std::string& out);  // escapes &, <, >, ' and " for HTML

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  bool pretty = false;  // one item per line, indented by `indent` for each level
  std::string_view indent;
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
};
void write_json(Runtime& runtime, const Value& value, const JsonStyle& style, std::string& out);

}  // namespace protean::jinja
