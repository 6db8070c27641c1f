#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace protean::jinja {

enum class TokenKind : std::uint8_t {
  kData,  // text outside of tags, white-space control applied
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
  std::string text;  // of a string: what it stands for
  Value number = Value::none();

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
};

// Cuts a template into tokens as jinja2 does with trim_blocks and lstrip_blocks on and
// keep_trailing_newline off. Throws Failure. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

}  // namespace protean::jinja
