// Filters that call other filters and tests, default and attr.

#include <algorithm>
#include <array>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"

namespace protean::jinja {
namespace {

// Returns the arguments behind the first `skipped` ones, for the filter or test that is called.
Call inner_call(Call& call, std::size_t skipped) {
  Call inner;
  const auto rest = call.rest(skipped);
  inner.positional.assign(rest.begin(), rest.end());
  inner.named = std::exchange(call.named, {});
  return inner;
}

Value apply(Runtime& runtime, Builtin builtin, const Value& item, const Call& prepared) {
  const Deeper deeper(runtime);
  runtime.spend_steps(2 + prepared.positional.size() + prepared.named.size());
  Call call = prepared;
  const Value result = builtin(runtime, item, call);
  call.finish("the filter or test");
  return result;
}

// As in jinja2, none and false have no elements.
std::span<const Value> elements_if_any(Runtime& runtime, const Value& value) {
  return truthy(value) ? elements(runtime, value) : std::span<const Value>();
}

Value map(Runtime& runtime, const Value& self, Call& call) {
  const Value* attribute = call.positional.empty() ? call.take(0, "attribute") : nullptr;
  std::vector<Value> mapped;
  if (attribute != nullptr) {
    const Value path = *attribute, otherwise = call.optional(1, "default", Value::none());
    for (const Value& item : elements_if_any(runtime, self)) {
      mapped.push_back(at_path(runtime, item, path, otherwise));
    }
    return runtime.sequence(Sequence::Kind::kGenerator, std::move(mapped));
  }
  const std::string_view name = text_of(runtime, call.required(0, ""));
  const Builtin filter = find_filter(name);
  if (filter == nullptr) throw Failure{unknown_filter(name)};
  const Call inner = inner_call(call, 1);
  for (const Value& item : elements_if_any(runtime, self)) {
    mapped.push_back(apply(runtime, filter, item, inner));
  }
  return runtime.sequence(Sequence::Kind::kGenerator, std::move(mapped));
}

// select, reject, selectattr and rejectattr: the items that pass a test, or those that fail it.
template <bool kKeep, bool kByAttribute>
Value choose(Runtime& runtime, const Value& self, Call& call) {
  Value path = Value::none();
  if (kByAttribute) path = call.required(0, "");
  constexpr std::size_t kTestAt = kByAttribute ? 1 : 0;
  Builtin test = nullptr;
  if (const Value* name = call.take(kTestAt, "")) {
    test = find_test(text_of(runtime, *name));
    if (test == nullptr) fail("no test named '{}'", text_of(runtime, *name));
  }
  const Call inner = inner_call(call, kTestAt + 1);
  std::vector<Value> chosen;
  for (const Value& item : elements_if_any(runtime, self)) {
    const Value looked_at = at_path(runtime, item, path);
    const bool passes =
        truthy(test != nullptr ? apply(runtime, test, looked_at, inner) : looked_at);
    if (passes == kKeep) chosen.push_back(item);
  }
  return runtime.sequence(Sequence::Kind::kGenerator, std::move(chosen));
}

Value otherwise(Runtime&, const Value& self, Call& call) {
  const Value value = call.optional(0, "default_value", Value::text(""));
  const bool also_false = truthy(call.optional(1, "boolean", Value::boolean(false)));
  return self.is_undefined() || (also_false && !truthy(self)) ? value : self;
}

Value attribute(Runtime& runtime, const Value& self, Call& call) {
  const std::string_view name = text_of(runtime, call.required(0, "name"));
  // Unlike obj.name, attr() never looks up a key.
  if (self.is(Type::kDict) && self.as_dict().find(name) != nullptr) return Value::undefined(name);
  return get_attribute(runtime, self, name);
}

constexpr std::array<NamedBuiltin, 8> kSelectionFilters = {{
    {"attr", attribute},
    {"d", otherwise},
    {"default", otherwise},
    {"map", map},
    {"reject", choose<false, false>},
    {"rejectattr", choose<false, true>},
    {"select", choose<true, false>},
    {"selectattr", choose<true, true>},
}};

}  // namespace

std::span<const NamedBuiltin> selection_filters() {
  return kSelectionFilters;
}

Builtin find_filter(std::string_view name) {
  for (const auto table :
       {text_filters(), sequence_filters(), selection_filters(), number_filters(), web_filters()}) {
    if (const Builtin found = find_builtin(table, name)) return found;
  }
  return nullptr;
}

Error unknown_filter(std::string_view name) {
  constexpr std::string_view kRefused[] = {"pprint", "random", "striptags", "urlize"};
  if (std::find(std::begin(kRefused), std::end(kRefused), name) != std::end(kRefused)) {
    return make_error(ErrorCode::kUnsupported, "the filter '{}' is not supported", name);
  }
  return make_error(ErrorCode::kInvalidArgument, "no filter named '{}'", name);
}

}  // namespace protean::jinja
