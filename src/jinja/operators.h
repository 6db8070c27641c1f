#pragma once

// Python's operators on values, within the limits of jinja2's sandbox.

#include <compare>
#include <span>
#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kNegate,
  kPlus,
  kNot,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

// Throws the Failure for using an undefined value.
[[noreturn]] void fail_undefined(const Value& value);

bool truthy(const Value& value);
bool equal(Runtime& runtime, const Value& a, const Value& b);
// Throws Failure if Python does not order the two types.
std::partial_ordering order(Runtime& runtime, const Value& a, const Value& b,
                            std::string_view sign);
bool contains(Runtime& runtime, const Value& container, const Value& item);
bool compare(Runtime& runtime, Operator op, const Value& a, const Value& b);
Value arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b);
Value unary(Runtime& runtime, Operator op, const Value& value);

// obj.name and obj[key]. As in jinja2, each falls back to the other, then to undefined.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);
// A bound that is none is missing.
struct SliceBounds {
  Value start, stop, step;
};
Value slice(Runtime& runtime, const Value& object, const SliceBounds& bounds);

// Returns what iteration yields, in order. Consumes a generator.
std::span<const Value> elements(Runtime& runtime, const Value& value);
bool is_iterable(const Value& value);
std::size_t length(Runtime& runtime, const Value& value);
Value call_value(Runtime& runtime, const Value& callee, Call& arguments);

// Throw Failure if the result does not fit 64 bits.
std::int64_t checked_add(std::int64_t a, std::int64_t b);
std::int64_t checked_multiply(std::int64_t a, std::int64_t b);
std::int64_t to_index(const Value& value,
                      std::string_view what);  // throws Failure unless int or bool

}  // namespace protean::jinja
