#include <array>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_search.h"

namespace protean::jinja {
namespace {

template <bool (*kHolds)(const Value&)>
Value holds(Runtime&, const Value& self, Call&) {
  return Value::boolean(kHolds(self));
}

template <Operator kOperator>
Value compared(Runtime& runtime, const Value& self, Call& call) {
  return Value::boolean(compare(runtime, kOperator, self, call.required(0, "")));
}

bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_string(const Value& v) {
  return v.is_string();
}
bool is_number(const Value& v) {
  return v.is_number();
}
bool is_integer(const Value& v) {
  return v.is(Type::kInt);
}
bool is_float(const Value& v) {
  return v.is(Type::kFloat);
}
bool is_boolean(const Value& v) {
  return v.is(Type::kBool);
}
bool is_true(const Value& v) {
  return v.is(Type::kBool) && v.as_integer() != 0;
}
bool is_false(const Value& v) {
  return v.is(Type::kBool) && v.as_integer() == 0;
}
bool is_mapping(const Value& v) {
  return v.is(Type::kDict);
}
bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is(Type::kDict) ||
         (v.is(Type::kSequence) && v.as_sequence().indexable());
}
bool is_callable(const Value& v) {
  return v.is(Type::kCallable) || v.is_undefined();
}
bool is_escaped(const Value& v) {
  return v.is_markup();
}

template <std::int64_t kRest>
Value halves_to(Runtime& runtime, const Value& self, Call&) {
  const Value rest = arithmetic(runtime, Operator::kModulo, self, Value::integer(2));
  return Value::boolean(equal(runtime, rest, Value::integer(kRest)));
}

Value divisible_by(Runtime& runtime, const Value& self, Call& call) {
  const Value rest = arithmetic(runtime, Operator::kModulo, self, call.required(0, "num"));
  return Value::boolean(equal(runtime, rest, Value::integer(0)));
}

template <bool kUpper>
Value is_case(Runtime& runtime, const Value& self, Call&) {
  const std::string_view text = text_of(runtime, self);
  runtime.read(text);
  return Value::boolean(has_only_case(text, kUpper));
}

// Python's "is": the same object. Refuses numbers and text, whose identity in Python is not
// defined.
Value same_as(Runtime&, const Value& self, Call& call) {
  const Value other = call.required(0, "other");
  if (self.type() != other.type()) return Value::boolean(false);
  switch (self.type()) {
    case Type::kNone:
      return Value::boolean(true);
    case Type::kBool:
      return Value::boolean(self.as_integer() == other.as_integer());
    case Type::kSequence:
      return Value::boolean(&self.as_sequence() == &other.as_sequence());
    case Type::kDict:
      return Value::boolean(&self.as_dict() == &other.as_dict());
    case Type::kNamespace:
      return Value::boolean(&self.as_namespace() == &other.as_namespace());
    default:
      refuse("sameas of {} values is not supported", type_name(self));
  }
}

template <Builtin (*kFind)(std::string_view)>
Value is_named(Runtime& runtime, const Value& self, Call&) {
  return Value::boolean(kFind(text_of(runtime, self)) != nullptr);
}

constexpr std::array<NamedBuiltin, 39> kTests = {{
    {"!=", compared<Operator::kNotEqual>},
    {"<", compared<Operator::kLess>},
    {"<=", compared<Operator::kLessEqual>},
    {"==", compared<Operator::kEqual>},
    {">", compared<Operator::kGreater>},
    {">=", compared<Operator::kGreaterEqual>},
    {"boolean", holds<is_boolean>},
    {"callable", holds<is_callable>},
    {"defined", holds<is_defined>},
    {"divisibleby", divisible_by},
    {"eq", compared<Operator::kEqual>},
    {"equalto", compared<Operator::kEqual>},
    {"escaped", holds<is_escaped>},
    {"even", halves_to<0>},
    {"false", holds<is_false>},
    {"filter", is_named<find_filter>},
    {"float", holds<is_float>},
    {"ge", compared<Operator::kGreaterEqual>},
    {"greaterthan", compared<Operator::kGreater>},
    {"gt", compared<Operator::kGreater>},
    {"in", compared<Operator::kIn>},
    {"integer", holds<is_integer>},
    {"iterable", holds<is_iterable>},
    {"le", compared<Operator::kLessEqual>},
    {"lessthan", compared<Operator::kLess>},
    {"lower", is_case<false>},
    {"lt", compared<Operator::kLess>},
    {"mapping", holds<is_mapping>},
    {"ne", compared<Operator::kNotEqual>},
    {"none", holds<is_none>},
    {"number", holds<is_number>},
    {"odd", halves_to<1>},
    {"sameas", same_as},
    {"sequence", holds<is_sequence>},
    {"string", holds<is_string>},
    {"test", is_named<find_test>},
    {"true", holds<is_true>},
    {"undefined", holds<is_undefined>},
    {"upper", is_case<true>},
}};

}  // namespace

Builtin find_test(std::string_view name) {
  return find_builtin(kTests, name);
}

}  // namespace protean::jinja
