#pragma once

#include <string_view>
#include <vector>

#include "jinja/lexer.h"

namespace protean::jinja {

// The parser's cursor. It never moves beyond the kEnd token.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(std::size_t ahead = 0) const;
  const Token& next();
  bool at(TokenKind kind) const { return peek().kind == kind; }
  bool at_operator(std::string_view text) const { return peek().is(TokenKind::kOperator, text); }
  bool at_name(std::string_view text) const { return peek().is(TokenKind::kName, text); }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  const Token& expect(TokenKind kind);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);

  // Throw Failure with the current token's line.
  [[noreturn]] void unexpected(std::string_view wanted) const;
  [[noreturn]] void fail_here(std::string_view message) const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace protean::jinja
