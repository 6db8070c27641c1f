#pragma once

#include <string>
#include <vector>

#include "jinja/ast.h"
#include "jinja/token_stream.h"

namespace protean::jinja {

// Parses expressions with jinja2's grammar and precedences: ** groups to the left, and a filter
// binds tighter than any operator except a unary minus.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExprPtr expression();
  // A comma makes a tuple even without parentheses. `simple` allows names only, for targets;
  // `conditional` is off in `for x in ...`.
  struct TupleRules {
    bool simple = false;
    bool conditional = true;
    bool parenthesized = false;
  };
  ExprPtr tuple(const TupleRules& rules);
  ExprPtr target();
  ExprPtr block_filters(bool start_inline);  // null if there are none
  Arguments call_arguments();

  // The macros around the current token, which note every name that is read.
  std::vector<MacroBody*> open_macros;

 private:
  ExprPtr make(ExprKind kind, int line, std::vector<ExprPtr> parts);
  ExprPtr settle(ExprPtr expr);
  ExprPtr logical(bool is_or);
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr operand(bool with_filter = true);
  ExprPtr primary();
  ExprPtr name();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr expr);
  ExprPtr filters_and_tests(ExprPtr expr);
  ExprPtr subscript(ExprPtr object);
  ExprPtr subscript_item(ExprPtr object, int line);
  ExprPtr call(ExprPtr callee);
  ExprPtr filter(ExprPtr input);
  ExprPtr test(ExprPtr subject);
  std::string dotted_name();

  TokenStream& tokens_;
  int nesting_ = 0;
};

}  // namespace protean::jinja
