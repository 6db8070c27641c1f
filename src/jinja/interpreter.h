#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/runtime.h"

namespace protean::jinja {

// Names that a template sets in one block. Owned by the Runtime, since a macro may outlive the
// block.
struct Scope : Object {
  explicit Scope(Scope* outer) : parent(outer) {}
  Scope* parent;
  std::vector<std::pair<std::string_view, Value>> names;

  const Value* find(std::string_view name) const;  // does not look in the parents
  void set(std::string_view name, const Value& value);
};

// Renders one template once. Syntax, context and Runtime must outlive it.
class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const Dict& context, Runtime& runtime)
      : syntax_(syntax), context_(context), runtime_(runtime) {}

  MarkedText render();

  // The functions below are called by Macro and Loop only.
  Value call_macro(const MacroBody& macro, Scope& closure, Call& call);
  struct LoopPlace {
    const Stmt& stmt;
    Scope& outer;
    int depth;
  };
  MarkedText render_again(const LoopPlace& place, const Value& items);

 private:
  enum class Flow : std::uint8_t { kOn, kBreak, kContinue };

  Value evaluate(const Expr& expr, Scope& scope);
  Value look_up(std::string_view name, Scope& scope);
  Value dict_literal(const Expr& expr, Scope& scope);
  Value sliced(const Expr& expr, Scope& scope);
  Value comparison(const Expr& expr, Scope& scope);
  Value concatenation(const Expr& expr, Scope& scope);
  Value conditional(const Expr& expr, Scope& scope);
  Value called(const Expr& expr, Scope& scope, const Value* caller);
  Value filtered(const Expr& expr, Scope& scope, const Value* input);
  Value tested(const Expr& expr, Scope& scope);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs, Scope& scope);
  Call evaluate_arguments(const Arguments& arguments, Scope& scope);

  Flow execute(const Body& body, Scope& scope, MarkedText& out);
  Flow execute(const Stmt& stmt, Scope& scope, MarkedText& out);
  Flow choose_branch(const Stmt& stmt, Scope& scope, MarkedText& out);
  Flow loop(const Stmt& stmt, Scope& scope, MarkedText& out);
  Flow loop_over(const LoopPlace& place, std::span<const Value> items, MarkedText& out);
  Flow set_block(const Stmt& stmt, Scope& scope);
  Flow filter_block(const Stmt& stmt, Scope& scope, MarkedText& out);
  Flow with_block(const Stmt& stmt, Scope& scope, MarkedText& out);
  void call_block(const Stmt& stmt, Scope& scope, MarkedText& out);
  void assign(const Expr& target, const Value& value, Scope& scope);
  void print(const Value& value, MarkedText& out);
  std::vector<Value> matching(const LoopPlace& place, std::span<const Value> items);
  Scope& new_scope(Scope* parent);

  const Syntax& syntax_;
  const Dict& context_;
  Runtime& runtime_;
};

}  // namespace protean::jinja
