#pragma once

#include <string>
#include <vector>

#include "jinja/ast.h"
#include "jinja/token_stream.h"

namespace protean::jinja {

// jinja2's expression grammar, precedences and oddities included (** groups to the left, a filter
// binds tighter than any operator but looser than a unary minus).
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExprPtr expression();
  // Without parentheses a comma makes a tuple. `simple` allows names only, for targets; a
  // conditional is not allowed in `for x in ...`.
  struct TupleRules {
    bool simple = false;
    bool conditional = true;
    bool parenthesized = false;
  };
  ExprPtr tuple(const TupleRules& rules);
  ExprPtr target();
  ExprPtr block_filters(bool start_inline);  // null without any
  Arguments call_arguments();

  // Every name that is read is told to the macros being parsed.
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
