// The part of Interpreter that executes statements.

#include "jinja/interpreter.h"

#include <algorithm>

#include "jinja/callables.h"
#include "jinja/operators.h"
#include "jinja/print.h"

namespace protean::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const auto& [known, value] : names) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, const Value& value) {
  for (auto& [known, old] : names) {
    if (known == name) {
      old = value;
      return;
    }
  }
  names.emplace_back(name, value);
}

MarkedText Interpreter::render() {
  MarkedText out;
  execute(syntax_.body, new_scope(nullptr), out);
  return out;
}

Scope& Interpreter::new_scope(Scope* parent) {
  return *runtime_.make<Scope>(parent);
}

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope, MarkedText& out) {
  for (const auto& stmt : body) {
    if (const Flow flow = execute(*stmt, scope, out); flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt, Scope& scope, MarkedText& out) {
  const Deeper deeper(runtime_);
  runtime_.spend_steps(1);
  runtime_.set_line(stmt.line);
  switch (stmt.kind) {
    case StmtKind::kText:
      print(Value::template_text(stmt.text), out);
      return Flow::kOn;
    case StmtKind::kPrint:
      print(evaluate(*stmt.value, scope), out);
      return Flow::kOn;
    case StmtKind::kIf:
      return choose_branch(stmt, scope, out);
    case StmtKind::kFor:
      return loop(stmt, scope, out);
    case StmtKind::kSet:
      assign(*stmt.target, evaluate(*stmt.value, scope), scope);
      return Flow::kOn;
    case StmtKind::kSetBlock:
      return set_block(stmt, scope);
    case StmtKind::kWith:
      return with_block(stmt, scope, out);
    case StmtKind::kMacro:
      scope.set(stmt.macro.name, runtime_.make<Macro>(*this, stmt.macro, scope));
      return Flow::kOn;
    case StmtKind::kCallBlock:
      call_block(stmt, scope, out);
      return Flow::kOn;
    case StmtKind::kGeneration:
      return execute(stmt.body, new_scope(&scope), out);
    case StmtKind::kFilterBlock:
      return filter_block(stmt, scope, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

void Interpreter::print(const Value& value, MarkedText& out) {
  write_text(runtime_, value, out);
}

Interpreter::Flow Interpreter::choose_branch(const Stmt& stmt, Scope& scope, MarkedText& out) {
  for (const Branch& branch : stmt.branches) {
    if (truthy(evaluate(*branch.condition, scope))) return execute(branch.body, scope, out);
  }
  return execute(stmt.otherwise, scope, out);
}

std::vector<Value> Interpreter::matching(const LoopPlace& place, std::span<const Value> items) {
  std::vector<Value> matches;
  Scope& scope = new_scope(&place.outer);
  for (const Value& item : items) {
    assign(*place.stmt.target, item, scope);
    if (truthy(evaluate(*place.stmt.condition, scope))) matches.push_back(item);
  }
  return matches;
}

Interpreter::Flow Interpreter::loop(const Stmt& stmt, Scope& scope, MarkedText& out) {
  const Value items = evaluate(*stmt.value, scope);
  return loop_over({stmt, scope, 0}, elements(runtime_, items), out);
}

MarkedText Interpreter::render_again(const LoopPlace& place, const Value& items) {
  MarkedText out;
  loop_over({place.stmt, place.outer, place.depth + 1}, elements(runtime_, items), out);
  return out;
}

Interpreter::Flow Interpreter::loop_over(const LoopPlace& place, std::span<const Value> items,
                                         MarkedText& out) {
  const Stmt& stmt = place.stmt;
  if (stmt.condition != nullptr) {
    items = runtime_.list(matching(place, items)).as_sequence().items;
  }
  Loop& loop = *runtime_.make<Loop>(*this, place, items);
  Scope& scope = new_scope(&place.outer);
  bool completed = false;  // a pass reached its end: jinja2 runs the else if none did
  for (std::size_t i = 0; i < items.size(); ++i) {
    scope.names.clear();
    scope.set("loop", Value(&loop));
    loop.go_to(i);
    assign(*stmt.target, items[i], scope);
    const Flow flow = execute(stmt.body, scope, out);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kOn;
  }
  if (completed) return Flow::kOn;
  return execute(stmt.otherwise, new_scope(&place.outer), out);
}

Interpreter::Flow Interpreter::set_block(const Stmt& stmt, Scope& scope) {
  MarkedText text;
  Scope& inner = new_scope(&scope);
  const Flow flow = execute(stmt.body, inner, text);
  if (flow != Flow::kOn) return flow;
  Value value = runtime_.text(std::move(text));
  if (stmt.value != nullptr) value = filtered(*stmt.value, inner, &value);
  assign(*stmt.target, value, scope);
  return flow;
}

Interpreter::Flow Interpreter::filter_block(const Stmt& stmt, Scope& scope, MarkedText& out) {
  MarkedText text;
  Scope& inner = new_scope(&scope);
  const Flow flow = execute(stmt.body, inner, text);
  if (flow != Flow::kOn) return flow;
  const Value value = runtime_.text(std::move(text));
  print(filtered(*stmt.value, inner, &value), out);
  return flow;
}

Interpreter::Flow Interpreter::with_block(const Stmt& stmt, Scope& scope, MarkedText& out) {
  Scope& inner = new_scope(&scope);
  for (const auto& [target, value] : stmt.assignments) {
    assign(*target, evaluate(*value, scope), inner);
  }
  return execute(stmt.body, inner, out);
}

void Interpreter::call_block(const Stmt& stmt, Scope& scope, MarkedText& out) {
  const Value caller = runtime_.make<Macro>(*this, stmt.macro, scope);
  print(called(*stmt.value, scope, &caller), out);
}

void Interpreter::assign(const Expr& target, const Value& value, Scope& scope) {
  if (target.kind == ExprKind::kName) {
    runtime_.spend_steps(scope.names.size() / 16);
    if (scope.names.size() == scope.names.capacity()) runtime_.spend_bytes(64);
    return scope.set(target.text, value);
  }
  if (target.kind == ExprKind::kAttribute) {
    const Value space = look_up(target.parts[0]->text, scope);
    if (!space.is(Type::kNamespace)) fail("cannot assign attribute on non-namespace object");
    if (space.as_namespace().attributes.insert_or_assign(target.text, value).second) {
      runtime_.spend_bytes(64);
    }
    return;
  }
  const auto values = elements(runtime_, value);
  if (values.size() != target.parts.size()) {
    fail("{} values to unpack (expected {}, got {})",
         values.size() < target.parts.size() ? "not enough" : "too many", target.parts.size(),
         values.size());
  }
  for (std::size_t i = 0; i < values.size(); ++i) assign(*target.parts[i], values[i], scope);
}

Value Interpreter::call_macro(const MacroBody& macro, Scope& closure, Call& call) {
  const Deeper deeper(runtime_);
  Scope& scope = new_scope(&closure);
  const auto& parameters = macro.parameters;
  std::vector<bool> given(parameters.size());
  runtime_.spend_bytes(parameters.size() * 2 * sizeof(Value));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Value* argument = call.take(i, parameters[i].name);
    given[i] = argument != nullptr;
    scope.set(parameters[i].name,
              argument != nullptr ? *argument : Value::undefined(parameters[i].name));
  }
  if (macro.uses_caller) {
    const Value* caller = call.take(call.positional.size(), "caller");
    scope.set("caller", caller != nullptr ? *caller : Value::undefined("caller"));
  }
  if (macro.uses_kwargs) {
    std::vector<Pair> named;
    for (auto& [name, value] : call.named) {
      if (!name.empty()) named.emplace_back(Value::text(std::exchange(name, {})), value);
    }
    scope.set("kwargs", runtime_.dict(std::move(named)));
  }
  if (macro.uses_varargs) {
    const auto more = call.rest(parameters.size());
    scope.set("varargs", runtime_.tuple({more.begin(), more.end()}));
  }
  call.finish("the macro " + macro.name);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (given[i] || parameters[i].otherwise == nullptr) continue;
    scope.set(parameters[i].name, evaluate(*parameters[i].otherwise, scope));
  }
  MarkedText out;
  execute(macro.body, scope, out);
  return runtime_.text(std::move(out));
}

}  // namespace protean::jinja
