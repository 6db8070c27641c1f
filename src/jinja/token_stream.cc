#include "jinja/token_stream.h"

#include <algorithm>

#include "jinja/runtime.h"

namespace protean::jinja {
namespace {

std::string_view describe(TokenKind kind) {
  constexpr std::string_view kNames[] = {"text",
                                         "'{%'",
                                         "'%}'",
                                         "'{{'",
                                         "'}}'",
                                         "a name",
                                         "a string",
                                         "an integer",
                                         "a float",
                                         "an operator",
                                         "the end of the template"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string describe(const Token& token) {
  const bool shows = token.kind == TokenKind::kName || token.kind == TokenKind::kOperator;
  return shows ? fmt::format("'{}'", token.text) : std::string(describe(token.kind));
}

}  // namespace

const Token& TokenStream::peek(std::size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

const Token& TokenStream::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::skip_operator(std::string_view text) {
  const bool here = at_operator(text);
  if (here) next();
  return here;
}

bool TokenStream::skip_name(std::string_view text) {
  const bool here = at_name(text);
  if (here) next();
  return here;
}

const Token& TokenStream::expect(TokenKind kind) {
  if (!at(kind)) unexpected(describe(kind));
  return next();
}

void TokenStream::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected(fmt::format("'{}'", text));
}

void TokenStream::expect_name(std::string_view text) {
  if (!skip_name(text)) unexpected(fmt::format("'{}'", text));
}

void TokenStream::unexpected(std::string_view wanted) const {
  fail_here(fmt::format("expected {}, found {}", wanted, describe(peek())));
}

void TokenStream::fail_here(std::string_view message) const {
  throw Failure{Error{ErrorCode::kInvalidArgument, std::string(message)}, peek().line};
}

}  // namespace protean::jinja
