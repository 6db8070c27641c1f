// The part of Interpreter that evaluates expressions.

#include "jinja/filters.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"
#include "jinja/print.h"

namespace protean::jinja {

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  const Deeper deeper(runtime_);
  runtime_.spend_steps(1);
  runtime_.set_line(expr.line);
  const auto part = [&](std::size_t i) { return evaluate(*expr.parts[i], scope); };
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.value;
    case ExprKind::kName:
      return look_up(expr.text, scope);
    case ExprKind::kList:
      return runtime_.list(evaluate_all(expr.parts, scope));
    case ExprKind::kTuple:
      return runtime_.tuple(evaluate_all(expr.parts, scope));
    case ExprKind::kDict:
      return dict_literal(expr, scope);
    case ExprKind::kAttribute:
      return get_attribute(runtime_, part(0), expr.text);
    case ExprKind::kSubscript: {
      const Value object = part(0);
      return get_item(runtime_, object, part(1));
    }
    case ExprKind::kSlice:
      return sliced(expr, scope);
    case ExprKind::kCall:
      return called(expr, scope, nullptr);
    case ExprKind::kFilter:
      return filtered(expr, scope, nullptr);
    case ExprKind::kTest:
      return tested(expr, scope);
    case ExprKind::kUnary:
      return unary(runtime_, expr.operators[0], part(0));
    case ExprKind::kArithmetic: {
      const Value left = part(0), right = part(1);
      runtime_.set_line(expr.line);
      return arithmetic(runtime_, expr.operators[0], left, right);
    }
    case ExprKind::kCompare:
      return comparison(expr, scope);
    case ExprKind::kConcat:
      return concatenation(expr, scope);
    case ExprKind::kAnd: {
      const Value left = part(0);
      return truthy(left) ? part(1) : left;
    }
    case ExprKind::kOr: {
      const Value left = part(0);
      return truthy(left) ? left : part(1);
    }
    case ExprKind::kConditional:
      return conditional(expr, scope);
  }
  return Value();
}

Value Interpreter::look_up(std::string_view name, Scope& scope) {
  for (const Scope* here = &scope; here != nullptr; here = here->parent) {
    runtime_.spend_steps(here->names.size() / 16);
    if (const Value* found = here->find(name)) return *found;
  }
  const Value* given = context_.find(name);
  return given != nullptr ? *given : find_global(runtime_, name);
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExprPtr>& exprs, Scope& scope) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(evaluate(*expr, scope));
  return values;
}

Value Interpreter::dict_literal(const Expr& expr, Scope& scope) {
  std::vector<Pair> items;
  for (std::size_t i = 0; i < expr.parts.size(); i += 2) {
    const Value key = evaluate(*expr.parts[i], scope);
    items.emplace_back(key, evaluate(*expr.parts[i + 1], scope));
  }
  return runtime_.dict(std::move(items));
}

Value Interpreter::sliced(const Expr& expr, Scope& scope) {
  const Value object = evaluate(*expr.parts[0], scope);
  const auto bound = [&](std::size_t i) {
    return expr.parts[i] != nullptr ? evaluate(*expr.parts[i], scope) : Value::none();
  };
  SliceBounds bounds;
  bounds.start = bound(1);
  bounds.stop = bound(2);
  bounds.step = bound(3);
  return slice(runtime_, object, bounds);
}

Value Interpreter::comparison(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.parts[0], scope);
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    const Value right = evaluate(*expr.parts[i + 1], scope);
    runtime_.set_line(expr.line);
    if (!compare(runtime_, expr.operators[i], left, right)) return Value::boolean(false);
    left = right;
  }
  return Value::boolean(true);
}

Value Interpreter::concatenation(const Expr& expr, Scope& scope) {
  MarkedText out;
  for (const ExprPtr& part : expr.parts) write_text(runtime_, evaluate(*part, scope), out);
  return runtime_.text(std::move(out));
}

Value Interpreter::conditional(const Expr& expr, Scope& scope) {
  if (truthy(evaluate(*expr.parts[1], scope))) return evaluate(*expr.parts[0], scope);
  if (expr.parts[2] != nullptr) return evaluate(*expr.parts[2], scope);
  return Value::undefined("an if-expression that is false and has no else");
}

Call Interpreter::evaluate_arguments(const Arguments& arguments, Scope& scope) {
  Call call;
  call.positional = evaluate_all(arguments.positional, scope);
  for (const auto& [name, value] : arguments.named) {
    call.named.emplace_back(name, evaluate(*value, scope));
  }
  if (arguments.star != nullptr) {
    const auto more = elements(runtime_, evaluate(*arguments.star, scope));
    runtime_.spend_steps(more.size());
    call.positional.insert(call.positional.end(), more.begin(), more.end());
  }
  if (arguments.double_star == nullptr) return call;
  const Value more = evaluate(*arguments.double_star, scope);
  if (!more.is(Type::kDict)) fail("argument after ** must be a mapping, not {}", type_name(more));
  for (const auto& [name, value] : more.as_dict().items) {
    if (!name.is_string() || name.as_text().empty()) fail("names of arguments must be text");
    runtime_.spend_steps(1 + arguments.named.size());
    for (const auto& given : arguments.named) {
      if (given.first == name.as_text()) fail("the argument '{}' has two values", given.first);
    }
    call.named.emplace_back(name.as_text(), value);
  }
  return call;
}

Value Interpreter::called(const Expr& expr, Scope& scope, const Value* caller) {
  const Value callee = evaluate(*expr.parts[0], scope);
  Call call = evaluate_arguments(expr.arguments, scope);
  if (caller != nullptr) call.named.emplace_back("caller", *caller);
  runtime_.set_line(expr.line);
  return call_value(runtime_, callee, call);
}

Value Interpreter::filtered(const Expr& expr, Scope& scope, const Value* input) {
  const Deeper deeper(runtime_);
  const bool innermost = expr.parts[0] == nullptr;
  const Value self = innermost          ? *input
                     : input != nullptr ? filtered(*expr.parts[0], scope, input)
                                        : evaluate(*expr.parts[0], scope);
  Call call = evaluate_arguments(expr.arguments, scope);
  runtime_.set_line(expr.line);
  if (expr.builtin == nullptr) throw Failure{unknown_filter(expr.text)};
  const Value result = expr.builtin(runtime_, self, call);
  call.finish("the filter " + expr.text);
  return result;
}

Value Interpreter::tested(const Expr& expr, Scope& scope) {
  const Value self = evaluate(*expr.parts[0], scope);
  Call call = evaluate_arguments(expr.arguments, scope);
  runtime_.set_line(expr.line);
  if (expr.builtin == nullptr) fail("no test named '{}'", expr.text);
  const Value result = expr.builtin(runtime_, self, call);
  call.finish("the test " + expr.text);
  return result;
}

}  // namespace protean::jinja
