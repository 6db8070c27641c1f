#include "jinja/expression_parser.h"

#include <algorithm>

#include "jinja/filters.h"

namespace protean::jinja {
namespace {

constexpr int kMaxNesting = 64;  // levels of brackets
constexpr int kMaxExprDepth =
    300;  // levels of the tree, to which a + b + c ... adds one for each +

std::vector<ExprPtr> list_of(ExprPtr a, ExprPtr b = nullptr) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(a));
  if (b != nullptr) parts.push_back(std::move(b));
  return parts;
}

bool find_operator(const TokenStream& tokens,
                   std::span<const std::pair<std::string_view, Operator>> table, Operator* op) {
  for (const auto& [text, value] : table) {
    if (tokens.at_operator(text)) {
      *op = value;
      return true;
    }
  }
  return false;
}

using OperatorTable = std::pair<std::string_view, Operator>;
constexpr OperatorTable kComparisons[] = {
    {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
    {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
constexpr OperatorTable kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr OperatorTable kProducts[] = {{"*", Operator::kMultiply},
                                       {"/", Operator::kDivide},
                                       {"//", Operator::kFloorDivide},
                                       {"%", Operator::kModulo}};

int depth_of(const Arguments& arguments) {
  int deepest = 0;
  const auto see = [&](const ExprPtr& e) {
    if (e != nullptr) deepest = std::max(deepest, e->depth);
  };
  for (const ExprPtr& e : arguments.positional) see(e);
  for (const auto& [name, e] : arguments.named) see(e);
  see(arguments.star);
  see(arguments.double_star);
  return deepest;
}

void check_target(const TokenStream& tokens, const Expr& target) {
  if (target.kind == ExprKind::kTuple || target.kind == ExprKind::kList) {
    for (const ExprPtr& part : target.parts) check_target(tokens, *part);
  } else if (target.kind != ExprKind::kName) {
    tokens.fail_here("can only assign to names and tuples of names");
  }
}

}  // namespace

// Called for every node once it is complete, so that no tree is too deep to walk.
ExprPtr ExpressionParser::settle(ExprPtr expr) {
  int deepest = depth_of(expr->arguments);
  for (const ExprPtr& part : expr->parts) {
    if (part != nullptr) deepest = std::max(deepest, part->depth);
  }
  expr->depth = deepest + 1;
  if (expr->depth > kMaxExprDepth)
    tokens_.fail_here("the expression is too long or too deeply nested");
  return expr;
}

ExprPtr ExpressionParser::make(ExprKind kind, int line, std::vector<ExprPtr> parts) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->parts = std::move(parts);
  return settle(std::move(expr));
}

ExprPtr ExpressionParser::expression() {
  if (++nesting_ > kMaxNesting) tokens_.fail_here("the expression is too deeply nested");
  int line = tokens_.peek().line;
  ExprPtr value = logical(true);
  while (tokens_.skip_name("if")) {
    auto parts = list_of(std::move(value), logical(true));
    parts.push_back(tokens_.skip_name("else") ? expression() : nullptr);
    value = make(ExprKind::kConditional, line, std::move(parts));
    line = tokens_.peek().line;
  }
  --nesting_;
  return value;
}

ExprPtr ExpressionParser::tuple(const TupleRules& rules) {
  const int line = tokens_.peek().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  const auto ends = [&] {
    return tokens_.at(TokenKind::kVariableEnd) || tokens_.at(TokenKind::kBlockEnd) ||
           tokens_.at_operator(")");
  };
  while (!ends()) {
    items.push_back(rules.simple ? primary() : rules.conditional ? expression() : logical(true));
    if (!tokens_.skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !rules.parenthesized) tokens_.unexpected("an expression");
  return make(ExprKind::kTuple, line, std::move(items));
}

ExprPtr ExpressionParser::target() {
  // Hides the open macros, since a name that is assigned is not read.
  const std::vector<MacroBody*> reading = std::exchange(open_macros, {});
  ExprPtr target = tuple({.simple = true});
  open_macros = reading;
  check_target(tokens_, *target);
  return target;
}

ExprPtr ExpressionParser::logical(bool is_or) {
  const int line = tokens_.peek().line;
  ExprPtr left = is_or ? logical(false) : negation();
  while (tokens_.skip_name(is_or ? "or" : "and")) {
    ExprPtr right = is_or ? logical(false) : negation();
    left = make(is_or ? ExprKind::kOr : ExprKind::kAnd, line,
                list_of(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  const int line = tokens_.peek().line;
  if (!tokens_.skip_name("not")) return comparison();
  if (++nesting_ > kMaxNesting) tokens_.fail_here("the expression is too deeply nested");
  ExprPtr result = make(ExprKind::kUnary, line, list_of(negation()));
  result->operators = {Operator::kNot};
  --nesting_;
  return result;
}

ExprPtr ExpressionParser::comparison() {
  const int line = tokens_.peek().line;
  std::vector<ExprPtr> parts = list_of(sum());
  std::vector<Operator> operators;
  for (;;) {
    Operator op = Operator::kIn;
    if (find_operator(tokens_, kComparisons, &op)) {
      tokens_.next();
    } else if (tokens_.at_name("not") && tokens_.peek(1).is(TokenKind::kName, "in")) {
      tokens_.next();
      tokens_.next();
      op = Operator::kNotIn;
    } else if (!tokens_.skip_name("in")) {
      break;
    }
    operators.push_back(op);
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  ExprPtr result = make(ExprKind::kCompare, line, std::move(parts));
  result->operators = std::move(operators);
  return result;
}

ExprPtr ExpressionParser::sum() {
  const int line = tokens_.peek().line;
  ExprPtr left = concatenation();
  for (Operator op; find_operator(tokens_, kSums, &op);) {
    tokens_.next();
    ExprPtr right = concatenation();
    left = make(ExprKind::kArithmetic, line, list_of(std::move(left), std::move(right)));
    left->operators = {op};
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  const int line = tokens_.peek().line;
  std::vector<ExprPtr> parts = list_of(product());
  while (tokens_.skip_operator("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return make(ExprKind::kConcat, line, std::move(parts));
}

ExprPtr ExpressionParser::product() {
  const int line = tokens_.peek().line;
  ExprPtr left = power();
  for (Operator op; find_operator(tokens_, kProducts, &op);) {
    tokens_.next();
    ExprPtr right = power();
    left = make(ExprKind::kArithmetic, line, list_of(std::move(left), std::move(right)));
    left->operators = {op};
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  const int line = tokens_.peek().line;
  ExprPtr left = operand();
  while (tokens_.skip_operator("**")) {
    ExprPtr right = operand();
    left = make(ExprKind::kArithmetic, line, list_of(std::move(left), std::move(right)));
    left->operators = {Operator::kPower};
  }
  return left;
}

ExprPtr ExpressionParser::operand(bool with_filter) {
  const int line = tokens_.peek().line;
  const bool minus = tokens_.at_operator("-");
  ExprPtr value;
  if (minus || tokens_.at_operator("+")) {
    tokens_.next();
    if (++nesting_ > kMaxNesting) tokens_.fail_here("the expression is too deeply nested");
    value = make(ExprKind::kUnary, line, list_of(operand(false)));
    value->operators = {minus ? Operator::kNegate : Operator::kPlus};
    --nesting_;
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::name() {
  const Token& token = tokens_.next();
  ExprPtr result = make(ExprKind::kName, token.line, {});
  result->text = token.text;
  constexpr std::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
  const auto constant = std::find(std::begin(kConstants), std::end(kConstants), token.text);
  if (constant != std::end(kConstants)) {
    const auto index = constant - std::begin(kConstants);
    result->kind = ExprKind::kLiteral;
    result->value = index < 4 ? Value::boolean(index < 2) : Value::none();
    return result;
  }
  for (MacroBody* macro : open_macros) {
    macro->uses_caller |= token.text == "caller";
    macro->uses_varargs |= token.text == "varargs";
    macro->uses_kwargs |= token.text == "kwargs";
  }
  return result;
}

ExprPtr ExpressionParser::primary() {
  const Token& token = tokens_.peek();
  if (token.kind == TokenKind::kName) return name();
  if (token.kind == TokenKind::kString) {
    ExprPtr result = make(ExprKind::kLiteral, token.line, {});
    while (tokens_.at(TokenKind::kString)) result->text += tokens_.next().text;
    result->value = Value::template_text(result->text);
    return result;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    ExprPtr result = make(ExprKind::kLiteral, token.line, {});
    result->value = tokens_.next().number;
    return result;
  }
  if (tokens_.at_operator("[")) return list();
  if (tokens_.at_operator("{")) return dict();
  if (!tokens_.skip_operator("(")) tokens_.unexpected("an expression");
  if (++nesting_ > kMaxNesting) tokens_.fail_here("the expression is too deeply nested");
  ExprPtr result = tuple({.parenthesized = true});
  tokens_.expect_operator(")");
  --nesting_;
  return result;
}

ExprPtr ExpressionParser::list() {
  const int line = tokens_.next().line;
  std::vector<ExprPtr> items;
  while (!tokens_.at_operator("]")) {
    items.push_back(expression());
    if (!tokens_.at_operator("]")) tokens_.expect_operator(",");
  }
  tokens_.next();
  return make(ExprKind::kList, line, std::move(items));
}

ExprPtr ExpressionParser::dict() {
  const int line = tokens_.next().line;
  std::vector<ExprPtr> items;
  while (!tokens_.at_operator("}")) {
    items.push_back(expression());
    tokens_.expect_operator(":");
    items.push_back(expression());
    if (!tokens_.at_operator("}")) tokens_.expect_operator(",");
  }
  tokens_.next();
  return make(ExprKind::kDict, line, std::move(items));
}

ExprPtr ExpressionParser::postfix(ExprPtr expr) {
  for (;;) {
    if (tokens_.at_operator(".") || tokens_.at_operator("[")) {
      expr = subscript(std::move(expr));
    } else if (tokens_.at_operator("(")) {
      expr = call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr expr) {
  for (;;) {
    if (tokens_.skip_operator("|")) {
      expr = filter(std::move(expr));
    } else if (tokens_.skip_name("is")) {
      expr = test(std::move(expr));
    } else if (tokens_.at_operator("(")) {
      expr = call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
  const Token& token = tokens_.next();
  if (token.text == "[") return subscript_item(std::move(object), token.line);
  if (tokens_.at(TokenKind::kInteger)) {
    ExprPtr key = make(ExprKind::kLiteral, token.line, {});
    key->value = tokens_.next().number;
    return make(ExprKind::kSubscript, token.line, list_of(std::move(object), std::move(key)));
  }
  const std::string attribute = tokens_.expect(TokenKind::kName).text;
  ExprPtr result = make(ExprKind::kAttribute, token.line, list_of(std::move(object)));
  result->text = attribute;
  return result;
}

ExprPtr ExpressionParser::subscript_item(ExprPtr object, int line) {
  auto parts = list_of(std::move(object));
  if (tokens_.at_operator("]")) tokens_.unexpected("an index");
  const auto bound_ends = [&] { return tokens_.at_operator(":") || tokens_.at_operator("]"); };
  parts.push_back(tokens_.at_operator(":") ? nullptr : expression());
  const bool is_slice = tokens_.skip_operator(":");
  if (is_slice) {
    parts.push_back(bound_ends() ? nullptr : expression());
    const bool has_step = tokens_.skip_operator(":");
    parts.push_back(!has_step || tokens_.at_operator("]") ? nullptr : expression());
  } else if (tokens_.at_operator(",")) {
    std::vector<ExprPtr> keys = list_of(std::move(parts[1]));
    while (tokens_.skip_operator(",") && !tokens_.at_operator("]")) keys.push_back(expression());
    parts[1] = make(ExprKind::kTuple, line, std::move(keys));
  }
  tokens_.expect_operator("]");
  return make(is_slice ? ExprKind::kSlice : ExprKind::kSubscript, line, std::move(parts));
}

Arguments ExpressionParser::call_arguments() {
  Arguments arguments;
  tokens_.expect_operator("(");
  while (!tokens_.at_operator(")")) {
    const bool has_star = arguments.star != nullptr, has_double = arguments.double_star != nullptr;
    bool valid = !has_double;
    if (tokens_.skip_operator("*")) {
      valid = valid && !has_star;
      arguments.star = expression();
    } else if (tokens_.skip_operator("**")) {
      arguments.double_star = expression();
    } else if (tokens_.at(TokenKind::kName) && tokens_.peek(1).is(TokenKind::kOperator, "=")) {
      std::string name = tokens_.next().text;
      tokens_.next();
      for (const auto& [given, value] : arguments.named) valid = valid && given != name;
      ExprPtr value = expression();
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      valid = valid && !has_star && arguments.named.empty();
      arguments.positional.push_back(expression());
    }
    if (!valid) tokens_.fail_here("arguments are repeated, or positional ones follow others");
    if (!tokens_.at_operator(")")) tokens_.expect_operator(",");
  }
  tokens_.next();
  return arguments;
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  const int line = tokens_.peek().line;
  ExprPtr result = make(ExprKind::kCall, line, list_of(std::move(callee)));
  result->arguments = call_arguments();
  return settle(std::move(result));
}

std::string ExpressionParser::dotted_name() {
  std::string name = tokens_.expect(TokenKind::kName).text;
  while (tokens_.skip_operator(".")) name += "." + tokens_.expect(TokenKind::kName).text;
  return name;
}

ExprPtr ExpressionParser::filter(ExprPtr input) {
  const int line = tokens_.peek().line;
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(input));
  ExprPtr result = make(ExprKind::kFilter, line, std::move(parts));
  result->text = dotted_name();
  result->builtin = find_filter(result->text);
  if (tokens_.at_operator("(")) result->arguments = call_arguments();
  return settle(std::move(result));
}

ExprPtr ExpressionParser::block_filters(bool start_inline) {
  ExprPtr result;
  while (start_inline || tokens_.skip_operator("|")) {
    result = filter(std::move(result));
    start_inline = false;
  }
  return result;
}

ExprPtr ExpressionParser::test(ExprPtr subject) {
  const int line = tokens_.peek().line;
  const bool negated = tokens_.skip_name("not");
  ExprPtr result = make(ExprKind::kTest, line, list_of(std::move(subject)));
  result->text = dotted_name();
  result->builtin = find_test(result->text);
  const bool plain_end = tokens_.at_name("else") || tokens_.at_name("or") || tokens_.at_name("and");
  const TokenKind kind = tokens_.peek().kind;
  const bool value_follows = kind == TokenKind::kName || kind == TokenKind::kString ||
                             kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                             tokens_.at_operator("[") || tokens_.at_operator("{");
  if (tokens_.at_operator("(")) {
    result->arguments = call_arguments();
  } else if (value_follows && !plain_end) {
    if (tokens_.at_name("is")) tokens_.fail_here("tests cannot be chained with is");
    result->arguments.positional.push_back(postfix(primary()));
  }
  result = settle(std::move(result));
  if (!negated) return result;
  ExprPtr opposite = make(ExprKind::kUnary, line, list_of(std::move(result)));
  opposite->operators = {Operator::kNot};
  return opposite;
}

}  // namespace protean::jinja
