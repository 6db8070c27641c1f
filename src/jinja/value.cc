#include "jinja/value.h"

#include <algorithm>
#include <cmath>

#include "jinja/runtime.h"

namespace protean::jinja {
namespace {

constexpr int kKeyTupleDepth = 16;

int key_class(const Value& v) {
  if (v.is_none()) return 0;
  if (v.is_number()) return 1;
  if (v.is_string()) return 2;
  return v.is_undefined() ? 3 : 4;
}

int sign(bool less, bool more) {
  return less ? -1 : more ? 1 : 0;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    return sign(a.as_integer() < b.as_integer(), a.as_integer() > b.as_integer());
  }
  if (a.is_integer() || b.is_integer()) {
    const auto exact = [](const Value& v) {  // a mantissa of 64 bits holds every int64
      return v.is_integer() ? static_cast<long double>(v.as_integer())
                            : static_cast<long double>(v.as_number());
    };
    const bool a_nan = !a.is_integer() && std::isnan(a.as_number());
    const bool b_nan = !b.is_integer() && std::isnan(b.as_number());
    return sign(b_nan || exact(a) < exact(b), a_nan || exact(a) > exact(b));
  }
  const double x = a.as_number(), y = b.as_number();
  if (std::isnan(x) || std::isnan(y)) return sign(!std::isnan(x), !std::isnan(y));
  return sign(x<y, x> y);
}

bool key_within(const Value& v, int depth) {
  if (!v.is(Type::kSequence)) {
    return v.is_none() || v.is_number() || v.is_string() || v.is_undefined();
  }
  if (v.as_sequence().kind != Sequence::Kind::kTuple || depth == 0) return false;
  const auto& items = v.as_sequence().items;
  return std::all_of(items.begin(), items.end(),
                     [&](const Value& item) { return key_within(item, depth - 1); });
}

}  // namespace

bool can_be_key(const Value& value) {
  return key_within(value, kKeyTupleDepth);
}

int compare_keys(const Value& a, const Value& b) {
  const int a_class = key_class(a), b_class = key_class(b);
  if (a_class != b_class) return sign(a_class < b_class, true);
  if (a_class == 1) return compare_numbers(a, b);
  if (a_class == 2) return a.as_text().compare(b.as_text());
  if (a_class != 4) return 0;
  const auto &x = a.as_sequence().items, &y = b.as_sequence().items;
  for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
    if (const int order = compare_keys(x[i], y[i]); order != 0) return order;
  }
  return sign(x.size() < y.size(), x.size() > y.size());
}

const Value* Dict::find(const Value& key) const {
  if (!can_be_key(key)) return nullptr;
  const auto at = std::lower_bound(
      by_key.begin(), by_key.end(), key,
      [&](std::uint32_t i, const Value& k) { return compare_keys(items[i].first, k) < 0; });
  if (at == by_key.end() || compare_keys(items[*at].first, key) != 0) return nullptr;
  return &items[*at].second;
}

Value Callable::attribute(Runtime&, std::string_view name) {
  refuse("attribute '{}' of a {} is not supported", name, kind());
}

const Value* Call::take(std::size_t index, std::string_view name) {
  if (index < positional.size()) {
    taken_ = std::max(taken_, index + 1);
    return &positional[index];
  }
  // An argument that was taken stays in place without its name, so that pointers remain valid.
  for (auto& [given, value] : named) {
    if (!name.empty() && given == name) {
      given = {};
      return &value;
    }
  }
  return nullptr;
}

Value Call::required(std::size_t index, std::string_view name) {
  const Value* given = take(index, name);
  if (given == nullptr) {
    fail("argument {} is missing{}{}", index + 1, name.empty() ? "" : ": ", name);
  }
  return *given;
}

Value Call::optional(std::size_t index, std::string_view name, Value otherwise) {
  const Value* given = take(index, name);
  return given != nullptr ? *given : otherwise;
}

std::span<const Value> Call::rest(std::size_t from) {
  taken_ = positional.size();
  return std::span<const Value>(positional).subspan(std::min(from, positional.size()));
}

void Call::finish(std::string_view callee) const {
  if (positional.size() > taken_) {
    fail("{} takes at most {} arguments, but {} were given", callee, taken_, positional.size());
  }
  for (const auto& [name, value] : named) {
    if (!name.empty()) fail("{} has no argument named '{}'", callee, name);
  }
}

Builtin find_builtin(std::span<const NamedBuiltin> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const NamedBuiltin& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : found->run;
}

std::string_view type_name(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return value.is_markup() ? "Markup" : "str";
    case Type::kSequence: {
      constexpr std::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                             "dict_values", "dict_items", "generator"};
      return kNames[static_cast<std::size_t>(value.as_sequence().kind)];
    }
    case Type::kDict:
      return "dict";
    case Type::kNamespace:
      return "Namespace";
    case Type::kCallable:
      return value.as_callable().kind();
  }
  return "object";
}

}  // namespace protean::jinja
