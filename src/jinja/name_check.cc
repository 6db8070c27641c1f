#include "jinja/name_check.h"

#include "jinja/filters.h"

namespace protean::jinja {
namespace {

enum class When : std::uint8_t { kNow, kOnUse };

void visit(const Body& body, When when);
void visit(const Expr* expr, When when);

void visit(const Arguments& arguments, When when) {
  for (const ExprPtr& value : arguments.positional) visit(value.get(), when);
  for (const auto& [name, value] : arguments.named) visit(value.get(), when);
  visit(arguments.star.get(), when);
  visit(arguments.double_star.get(), when);
}

void visit(const Expr* expr, When when) {
  if (expr == nullptr) return;
  if (expr->kind == ExprKind::kConditional) when = When::kOnUse;
  if (expr->builtin == nullptr && when == When::kNow) {
    if (expr->kind == ExprKind::kFilter) throw Failure{unknown_filter(expr->text), expr->line};
    if (expr->kind == ExprKind::kTest) {
      throw Failure{make_error(ErrorCode::kInvalidArgument, "no test named '{}'", expr->text),
                    expr->line};
    }
  }
  for (const ExprPtr& part : expr->parts) visit(part.get(), when);
  visit(expr->arguments, when);
}

void visit(const MacroBody& macro) {
  for (const Parameter& parameter : macro.parameters) {
    visit(parameter.otherwise.get(), When::kNow);
  }
  visit(macro.body, When::kNow);
}

void visit(const Stmt& stmt, When when) {
  for (const Branch& branch : stmt.branches) {
    visit(branch.condition.get(), When::kOnUse);
    visit(branch.body, When::kOnUse);
  }
  for (const auto& [target, value] : stmt.assignments) visit(value.get(), when);
  visit(stmt.value.get(), stmt.kind == StmtKind::kSetBlock ? When::kNow : when);
  visit(stmt.condition.get(), When::kNow);
  visit(stmt.body, When::kNow);
  visit(stmt.otherwise, stmt.kind == StmtKind::kIf ? When::kOnUse : When::kNow);
  visit(stmt.macro);
}

void visit(const Body& body, When when) {
  for (const auto& stmt : body) visit(*stmt, when);
}

}  // namespace

void check_names(const Syntax& parsed) {
  visit(parsed.body, When::kNow);
}

}  // namespace protean::jinja
