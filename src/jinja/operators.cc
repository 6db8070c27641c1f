#include "jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "jinja/methods.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

using Kind = Sequence::Kind;

bool equal_sequences(Runtime& runtime, const Sequence& a, const Sequence& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.kind == Kind::kGenerator || a.kind == Kind::kValues) return false;
  if (a.kind > Kind::kRange) refuse("comparing dict views is not supported");
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&](const Value& x, const Value& y) { return equal(runtime, x, y); });
}

bool equal_dicts(Runtime& runtime, const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const Pair& item) {
    const Value* other = b.find(item.first);
    return other != nullptr && equal(runtime, item.second, *other);
  });
}

std::partial_ordering order_numbers(const Value& a, const Value& b) {
  const bool not_a_number = std::isnan(a.as_number()) || std::isnan(b.as_number());
  return not_a_number ? std::partial_ordering::unordered : compare_keys(a, b) <=> 0;
}

// Python's slice.indices(): a slice's bounds and step within a sequence.
struct Steps {
  std::int64_t start, stop, step;
  std::size_t count() const {
    const std::int64_t span = step > 0 ? stop - start : start - stop;
    const std::uint64_t stride =
        step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
    return span <= 0
               ? 0
               : static_cast<std::size_t>((static_cast<std::uint64_t>(span) - 1) / stride) + 1;
  }
};

bool absent(const Value& bound) {
  return bound.is_none();
}

Steps resolve(const SliceBounds& bounds, std::size_t size) {
  constexpr std::string_view kWhat = "slice indices must be integers or None";
  const std::int64_t step = absent(bounds.step) ? 1 : to_index(bounds.step, kWhat);
  if (step == 0) fail("slice step cannot be zero");
  const auto length = static_cast<std::int64_t>(size);
  const std::int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
  const auto place = [&](const Value& bound, std::int64_t otherwise) {
    if (absent(bound)) return otherwise;
    std::int64_t at = to_index(bound, kWhat);
    if (at < 0) at += length;
    return std::clamp(at, low, high);
  };
  return {place(bounds.start, step < 0 ? high : low), place(bounds.stop, step < 0 ? low : high),
          step};
}

Value slice_text(Runtime& runtime, const Value& value, const SliceBounds& bounds) {
  const std::string_view text = value.as_text();
  runtime.read(text);
  const std::size_t size = count_characters(text);
  const Steps steps = resolve(bounds, size);
  const std::size_t count = steps.count();
  if (count == 0) return Value::text("", value.is_markup());
  const bool one_byte_each = size == text.size();
  if (steps.step == 1) {
    const auto first = static_cast<std::size_t>(steps.start);
    const std::size_t from = one_byte_each ? first : character_offset(text, first);
    const std::string_view tail = text.substr(from);
    const std::size_t bytes = one_byte_each ? count : character_offset(tail, count);
    return value.part(tail.substr(0, bytes));
  }
  std::vector<std::string_view> characters;
  characters.reserve(size);
  runtime.spend_steps(size);
  for_each_character(text, [&](std::string_view c) { characters.push_back(c); });
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = steps.start + static_cast<std::int64_t>(i) * steps.step;
    out += characters[static_cast<std::size_t>(at)];
  }
  return runtime.text_from(value, std::move(out));
}

Value slice_sequence(Runtime& runtime, const Sequence& from, const SliceBounds& bounds) {
  const Steps steps = resolve(bounds, from.items.size());
  std::vector<Value> items(steps.count());
  runtime.spend_steps(items.size() / 4);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto at = steps.start + static_cast<std::int64_t>(i) * steps.step;
    items[i] = from.items[static_cast<std::size_t>(at)];
  }
  const Value made = runtime.sequence(from.kind, std::move(items));
  if (from.kind == Kind::kRange) {
    made.as_sequence().start = checked_add(from.start, checked_multiply(steps.start, from.step));
    made.as_sequence().stop = checked_add(from.start, checked_multiply(steps.stop, from.step));
    made.as_sequence().step = checked_multiply(from.step, steps.step);
  }
  return made;
}

Value indexed(Runtime& runtime, const Value& object, std::int64_t index) {
  const bool is_text = object.is_string();
  if (is_text) runtime.read(object.as_text());
  const std::size_t size =
      is_text ? count_characters(object.as_text()) : object.as_sequence().items.size();
  if (index < 0) index += static_cast<std::int64_t>(size);
  if (index < 0 || index >= static_cast<std::int64_t>(size)) {
    return Value::undefined("an element outside the sequence");
  }
  const auto at = static_cast<std::size_t>(index);
  if (!is_text) return object.as_sequence().items[at];
  const std::string_view tail = object.as_text().substr(character_offset(object.as_text(), at));
  return object.part(tail.substr(0, character_offset(tail, 1)));
}

// Returns the attribute that the object has in Python, or undefined.
Value own_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is(Type::kNamespace)) {
    const auto& attributes = object.as_namespace().attributes;
    const auto found = attributes.find(name);
    return found == attributes.end() ? Value::undefined(name) : found->second;
  }
  if (object.is(Type::kCallable)) return object.as_callable().attribute(runtime, name);
  if (object.is(Type::kSequence) && object.as_sequence().group) {
    if (name == "grouper") return object.as_sequence().items[0];
    if (name == "list") return object.as_sequence().items[1];
  }
  return bound_method(runtime, object, name);
}

bool contains_text(Runtime& runtime, const Value& container, const Value& item) {
  if (!item.is_string()) {
    fail("'in <string>' requires string as left operand, not {}", type_name(item));
  }
  const std::string_view text = container.as_text(), part = item.as_text();
  runtime.read(text);
  return part.empty() || memmem(text.data(), text.size(), part.data(), part.size()) != nullptr;
}

}  // namespace

void fail_undefined(const Value& value) {
  fail("'{}' is undefined", value.as_text());
}

bool truthy(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return value.as_integer() != 0;
    case Type::kFloat:
      return value.as_number() != 0;
    case Type::kString:
      return !value.as_text().empty();
    case Type::kSequence:
      return value.as_sequence().kind == Kind::kGenerator || !value.as_sequence().items.empty();
    case Type::kDict:
      return !value.as_dict().items.empty();
    default:
      return true;
  }
}

bool equal(Runtime& runtime, const Value& a, const Value& b) {
  const Deeper deeper(runtime);
  runtime.spend_steps(1);
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kString:
      runtime.spend_steps(std::min(a.as_text().size(), b.as_text().size()) / 64);
      return a.as_text() == b.as_text();
    case Type::kSequence:
      return equal_sequences(runtime, a.as_sequence(), b.as_sequence());
    case Type::kDict:
      return equal_dicts(runtime, a.as_dict(), b.as_dict());
    case Type::kNamespace:
      return &a.as_namespace() == &b.as_namespace();
    case Type::kCallable:
      return &a.as_callable() == &b.as_callable();
    default:
      return true;  // none and undefined
  }
}

std::partial_ordering order(Runtime& runtime, const Value& a, const Value& b,
                            std::string_view sign) {
  const Deeper deeper(runtime);
  runtime.spend_steps(1);
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    runtime.spend_steps(std::min(a.as_text().size(), b.as_text().size()) / 64);
    return a.as_text().compare(b.as_text()) <=> 0;
  }
  const bool ordered = a.is(Type::kSequence) && b.is(Type::kSequence) &&
                       a.as_sequence().kind == b.as_sequence().kind &&
                       a.as_sequence().kind <= Kind::kTuple;
  if (!ordered) {
    fail("'{}' not supported between instances of '{}' and '{}'", sign, type_name(a), type_name(b));
  }
  const auto &x = a.as_sequence().items, &y = b.as_sequence().items;
  for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
    if (!equal(runtime, x[i], y[i])) return order(runtime, x[i], y[i], sign);
  }
  return x.size() <=> y.size();
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_string()) return contains_text(runtime, container, item);
  if (container.is(Type::kDict)) {
    if (!can_be_key(item)) fail("unhashable type: '{}'", type_name(item));
    return container.as_dict().find(item) != nullptr;
  }
  if (!is_iterable(container)) {
    fail("argument of type '{}' is not iterable", type_name(container));
  }
  if (container.is_undefined()) return false;
  Sequence& sequence = container.as_sequence();
  const bool once = sequence.kind == Kind::kGenerator;
  for (std::size_t i = once ? sequence.consumed : 0; i < sequence.items.size(); ++i) {
    if (once) sequence.consumed = i + 1;
    if (equal(runtime, sequence.items[i], item)) return true;
  }
  return false;
}

bool compare(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return equal(runtime, a, b);
    case Operator::kNotEqual:
      return !equal(runtime, a, b);
    case Operator::kLess:
      return order(runtime, a, b, "<") < 0;
    case Operator::kLessEqual:
      return order(runtime, a, b, "<=") <= 0;
    case Operator::kGreater:
      return order(runtime, a, b, ">") > 0;
    case Operator::kGreaterEqual:
      return order(runtime, a, b, ">=") >= 0;
    case Operator::kIn:
      return contains(runtime, b, a);
    default:
      return !contains(runtime, b, a);
  }
}

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) fail_undefined(object);
  const Value own = own_attribute(runtime, object, name);
  if (!own.is_undefined() || !object.is(Type::kDict)) return own;
  const Value* item = object.as_dict().find(name);
  return item != nullptr ? *item : own;
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is(Type::kDict)) {
    if (const Value* item = object.as_dict().find(key)) return *item;
  }
  const bool indexable =
      object.is_string() || (object.is(Type::kSequence) && object.as_sequence().indexable());
  if (indexable && key.is_integer()) return indexed(runtime, object, key.as_integer());
  if (key.is_string()) return own_attribute(runtime, object, key.as_text());
  return Value::undefined("an element that is not there");
}

Value slice(Runtime& runtime, const Value& object, const SliceBounds& bounds) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.is_string()) return slice_text(runtime, object, bounds);
  if (!object.is(Type::kSequence) || !object.as_sequence().indexable()) {
    fail("'{}' object cannot be sliced", type_name(object));
  }
  return slice_sequence(runtime, object.as_sequence(), bounds);
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is(Type::kSequence) ||
         value.is(Type::kDict);
}

std::span<const Value> elements(Runtime& runtime, const Value& value) {
  if (!is_iterable(value)) fail("'{}' object is not iterable", type_name(value));
  if (value.is_undefined()) return {};
  if (value.is(Type::kSequence)) {
    Sequence& sequence = value.as_sequence();
    runtime.spend_steps(sequence.items.size() / 4);
    if (sequence.kind != Kind::kGenerator) return sequence.items;
    const auto left = std::span<const Value>(sequence.items).subspan(sequence.consumed);
    sequence.consumed = sequence.items.size();
    return left;
  }
  std::vector<Value> items;
  if (value.is(Type::kDict)) {
    for (const Pair& item : value.as_dict().items) items.push_back(item.first);
  } else {
    runtime.spend_bytes(value.as_text().size() * sizeof(Value));
    for_each_character(value.as_text(),
                       [&](std::string_view c) { items.push_back(value.part(c)); });
  }
  return runtime.list(std::move(items)).as_sequence().items;
}

std::size_t length(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) {
    runtime.read(value.as_text());
    return count_characters(value.as_text());
  }
  if (value.is(Type::kDict)) return value.as_dict().items.size();
  if (value.is(Type::kSequence) && value.as_sequence().kind != Kind::kGenerator) {
    return value.as_sequence().items.size();
  }
  fail("object of type '{}' has no len()", type_name(value));
}

Value call_value(Runtime& runtime, const Value& callee, Call& arguments) {
  if (callee.is_undefined()) fail_undefined(callee);
  if (!callee.is(Type::kCallable)) fail("'{}' object is not callable", type_name(callee));
  const Deeper deeper(runtime);
  return callee.as_callable().call(runtime, arguments);
}

std::int64_t to_index(const Value& value, std::string_view what) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("{}, not {}", what, type_name(value));
  return value.as_integer();
}

}  // namespace protean::jinja
