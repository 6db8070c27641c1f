#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/runtime.h"

namespace protean::jinja {

// Names set by a template in one block. Kept by the Runtime, since a macro may outlive the block.
struct Scope : Object {
  explicit Scope(Scope* outer) : parent(outer) {}
  Scope* parent;
  std::vector<std::pair<std::string_view, Value>> names;

  const Value* find(std::string_view name) const;  // here, not in the parents
  void set(std::string_view name, const Value& value);
};

// Walks one template once. Syntax, context and Runtime outlive it.
class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const Dict& context, Runtime& runtime)
      : syntax_(syntax), context_(context), runtime_(runtime) {}

  std::string render();

  // For the callables that a template makes.
  Value call_macro(const MacroBody& macro, Scope& closure, Call& call);
  struct LoopPlace {
    const Stmt& stmt;
    Scope& outer;
    int depth;
  };
  std::string render_again(const LoopPlace& place, const Value& items);

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

  Flow execute(const Body& body, Scope& scope, std::string& out);
  Flow execute(const Stmt& stmt, Scope& scope, std::string& out);
  Flow choose_branch(const Stmt& stmt, Scope& scope, std::string& out);
  Flow loop(const Stmt& stmt, Scope& scope, std::string& out);
  Flow loop_over(const LoopPlace& place, std::span<const Value> items, std::string& out);
  Flow set_block(const Stmt& stmt, Scope& scope);
  Flow filter_block(const Stmt& stmt, Scope& scope, std::string& out);
  Flow with_block(const Stmt& stmt, Scope& scope, std::string& out);
  void call_block(const Stmt& stmt, Scope& scope, std::string& out);
  void assign(const Expr& target, const Value& value, Scope& scope);
  void print(const Value& value, std::string& out);
  std::vector<Value> matching(const LoopPlace& place, std::span<const Value> items);
  Scope& new_scope(Scope* parent);

  const Syntax& syntax_;
  const Dict& context_;
  Runtime& runtime_;
};

}  // namespace protean::jinja
