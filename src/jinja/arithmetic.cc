#include <cmath>
#include <limits>

#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_format.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

[[noreturn]] void too_large() {
  refuse("an integer beyond 64 bits is not supported");
}

std::string_view sign_of(Operator op) {
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "** or pow()", "-", "+"};
  return kSigns[static_cast<std::size_t>(op)];
}

[[noreturn]] void bad_operands(Operator op, const Value& a, const Value& b) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", sign_of(op), type_name(a),
       type_name(b));
}

Value concatenate(Runtime& runtime, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  MarkedText out;
  runtime.spend_steps((a.as_text().size() + b.as_text().size()) / 64);
  for (const Value* part : {&a, &b}) {
    if (markup && !part->is_markup()) {
      write_escaped(part->as_text(), out.text);
    } else {
      runtime.append(out, *part);
    }
  }
  return runtime.text(std::move(out), markup);
}

std::size_t repeat_count(Runtime& runtime, std::size_t size, std::int64_t times) {
  if (times <= 0 || size == 0) return 0;
  const auto count = static_cast<std::size_t>(times);
  if (count > std::numeric_limits<std::size_t>::max() / size / sizeof(Value)) too_large();
  runtime.spend_steps(count * size / 64);
  return count;
}

Value repeat(Runtime& runtime, const Value& what, std::int64_t times) {
  if (what.is_string()) {
    const std::string_view text = what.as_text();
    const std::size_t count = repeat_count(runtime, text.size(), times);
    runtime.check_output(count * text.size());
    std::string out;
    out.reserve(count * text.size());
    for (std::size_t i = 0; i < count; ++i) out += text;
    return runtime.text_from(what, std::move(out));
  }
  const Sequence& sequence = what.as_sequence();
  const std::size_t count = repeat_count(runtime, sequence.items.size() * sizeof(Value), times);
  runtime.check_output(count * sequence.items.size());
  std::vector<Value> items;
  for (std::size_t i = 0; i < count; ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return runtime.sequence(sequence.kind, std::move(items));
}

bool repeatable(const Value& v) {
  return v.is_string() || (v.is(Type::kSequence) && v.as_sequence().kind <= Sequence::Kind::kTuple);
}

Value add_sequences(Runtime& runtime, const Value& a, const Value& b) {
  std::vector<Value> items = a.as_sequence().items;
  const auto& more = b.as_sequence().items;
  runtime.spend_steps((items.size() + more.size()) / 4);
  items.insert(items.end(), more.begin(), more.end());
  return runtime.sequence(a.as_sequence().kind, std::move(items));
}

double floor_divide(double a, double b) {
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

double modulo(double a, double b) {
  const double mod = std::fmod(a, b);
  if (mod == 0) return std::copysign(0.0, b);
  return (b < 0) != (mod < 0) ? mod + b : mod;
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  for (; exponent > 0; --exponent) result = checked_multiply(result, base);
  return Value::integer(result);
}

Value integer_arithmetic(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) {
    fail("{}", op == Operator::kDivide ? "division by zero" : "integer division or modulo by zero");
  }
  switch (op) {
    case Operator::kAdd:
      return Value::integer(checked_add(a, b));
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::kMultiply:
      return Value::integer(checked_multiply(a, b));
    case Operator::kDivide:
      return Value::number(
          static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case Operator::kFloorDivide:
      if (b == -1) return integer_arithmetic(Operator::kSubtract, 0, a);
      return Value::integer(a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
    case Operator::kModulo:
      if (b == -1) return Value::integer(0);
      return Value::integer(a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0));
    default:
      return integer_power(a, b);
  }
}

Value float_power(double a, double b) {
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    refuse("a complex number is not supported");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("Result too large");
  return Value::number(result);
}

Value float_arithmetic(Operator op, double a, double b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) fail("float division or modulo by zero");
  switch (op) {
    case Operator::kAdd:
      return Value::number(a + b);
    case Operator::kSubtract:
      return Value::number(a - b);
    case Operator::kMultiply:
      return Value::number(a * b);
    case Operator::kDivide:
      return Value::number(a / b);
    case Operator::kFloorDivide:
      return Value::number(floor_divide(a, b));
    case Operator::kModulo:
      return Value::number(modulo(a, b));
    default:
      return float_power(a, b);
  }
}

}  // namespace

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) too_large();
  return result;
}

std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) too_large();
  return result;
}

Value arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  if (op == Operator::kAdd && a.is_string() && b.is_string()) return concatenate(runtime, a, b);
  if (a.is_undefined()) fail_undefined(a);
  if (a.is_integer() && b.is_integer()) {
    return integer_arithmetic(op, a.as_integer(), b.as_integer());
  }
  if (a.is_number() && b.is_number()) return float_arithmetic(op, a.as_number(), b.as_number());
  if (op == Operator::kModulo && a.is_string()) return percent_format(runtime, a, b);
  if (b.is_undefined()) fail_undefined(b);
  if (op == Operator::kMultiply && repeatable(a) && b.is_integer()) {
    return repeat(runtime, a, b.as_integer());
  }
  if (op == Operator::kMultiply && a.is_integer() && repeatable(b)) {
    return repeat(runtime, b, a.as_integer());
  }
  const bool both = a.is(Type::kSequence) && b.is(Type::kSequence);
  if (op == Operator::kAdd && both && repeatable(a) &&
      a.as_sequence().kind == b.as_sequence().kind) {
    return add_sequences(runtime, a, b);
  }
  if (op == Operator::kAdd && (a.is_string() || b.is_string())) {
    fail("cannot add '{}' and '{}'; use ~ or the string filter", type_name(a), type_name(b));
  }
  bad_operands(op, a, b);
}

Value unary(Runtime&, Operator op, const Value& value) {
  if (op == Operator::kNot) return Value::boolean(!truthy(value));
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) {
    fail("bad operand type for unary {}: '{}'", sign_of(op), type_name(value));
  }
  if (value.is_integer()) {
    return integer_arithmetic(op == Operator::kPlus ? Operator::kAdd : Operator::kSubtract, 0,
                              value.as_integer());
  }
  return Value::number(op == Operator::kPlus ? value.as_number() : -value.as_number());
}

}  // namespace protean::jinja
