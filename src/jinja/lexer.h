#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace protean::jinja {

enum class TokenKind : std::uint8_t {
  kData,  // text outside of tags, after white-space control
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // a string's value, without quotes and escapes
  Value number = Value::none();

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
};

// Returns the tokens of a template as jinja2 cuts it with trim_blocks and lstrip_blocks on and
// keep_trailing_newline off. The last one is kEnd. Throws Failure.
std::vector<Token> tokenize(std::string_view source);

}  // namespace protean::jinja
