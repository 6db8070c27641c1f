#include "jinja/methods.h"

#include <algorithm>
#include <array>

#include "jinja/operators.h"

namespace protean::jinja {
namespace {

using Kind = Sequence::Kind;

class BoundMethod : public Callable {
 public:
  BoundMethod(const Value& self, const NamedBuiltin& method) : self_(self), method_(method) {}

  Value call(Runtime& runtime, Call& arguments) override {
    const Value result = method_.run(runtime, self_, arguments);
    arguments.finish(method_.name);
    return result;
  }
  std::string_view kind() const override { return "method"; }

 private:
  const Value self_;
  const NamedBuiltin& method_;
};

Value dict_get(Runtime&, const Value& self, Call& call) {
  const Value key = call.required(0, "");
  const Value otherwise = call.optional(1, "", Value::none());
  if (!can_be_key(key)) fail("unhashable type: '{}'", type_name(key));
  const Value* found = self.as_dict().find(key);
  return found != nullptr ? *found : otherwise;
}

Value dict_keys(Runtime& runtime, const Value& self, Call&) {
  std::vector<Value> keys;
  for (const Pair& item : self.as_dict().items) keys.push_back(item.first);
  return runtime.sequence(Kind::kKeys, std::move(keys));
}

Value dict_values(Runtime& runtime, const Value& self, Call&) {
  std::vector<Value> values;
  for (const Pair& item : self.as_dict().items) values.push_back(item.second);
  return runtime.sequence(Kind::kValues, std::move(values));
}

Value dict_items(Runtime& runtime, const Value& self, Call&) {
  std::vector<Value> items;
  for (const Pair& item : self.as_dict().items) {
    items.push_back(runtime.tuple({item.first, item.second}));
  }
  return runtime.sequence(Kind::kItems, std::move(items));
}

// copy(): the object itself, since templates cannot change it.
Value same(Runtime&, const Value& self, Call&) {
  return self;
}

Value sequence_count(Runtime& runtime, const Value& self, Call& call) {
  const Value wanted = call.required(0, "");
  std::int64_t count = 0;
  for (const Value& item : self.as_sequence().items) count += equal(runtime, item, wanted) ? 1 : 0;
  return Value::integer(count);
}

Value sequence_index(Runtime& runtime, const Value& self, Call& call) {
  const Value wanted = call.required(0, "");
  const auto& items = self.as_sequence().items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(runtime, items[i], wanted)) return Value::integer(static_cast<std::int64_t>(i));
  }
  fail("{}.index(x): x not in {}", type_name(self), type_name(self));
}

constexpr std::array<NamedBuiltin, 5> kDictMethods = {{{"copy", same},
                                                       {"get", dict_get},
                                                       {"items", dict_items},
                                                       {"keys", dict_keys},
                                                       {"values", dict_values}}};
constexpr std::array<NamedBuiltin, 3> kListMethods = {
    {{"copy", same}, {"count", sequence_count}, {"index", sequence_index}}};
constexpr std::array<NamedBuiltin, 2> kTupleMethods = {
    {{"count", sequence_count}, {"index", sequence_index}}};
// Methods that Python has in addition. They change the object, which the sandbox forbids, or no
// chat template needs them.
constexpr std::array<std::string_view, 6> kRefusedOfDict = {"clear",   "fromkeys",   "pop",
                                                            "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> kRefusedOfList = {"append", "clear",  "extend",  "insert",
                                                            "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 11> kRefusedOfText = {
    "casefold",    "encode",  "expandtabs", "format_map", "isdecimal", "isidentifier",
    "isprintable", "istitle", "maketrans",  "swapcase",   "translate"};

struct Methods {
  std::span<const NamedBuiltin> offered;
  std::span<const std::string_view> refused;
};

Methods methods_of(const Value& object) {
  if (object.is_string()) return {text_methods(), kRefusedOfText};
  if (object.is(Type::kDict)) return {kDictMethods, kRefusedOfDict};
  if (!object.is(Type::kSequence) || !object.as_sequence().indexable()) return {};
  if (object.as_sequence().kind == Kind::kList) return {kListMethods, kRefusedOfList};
  return {kTupleMethods, {}};
}

}  // namespace

Value bound_method(Runtime& runtime, const Value& object, std::string_view name) {
  const Methods methods = methods_of(object);
  for (const NamedBuiltin& method : methods.offered) {
    if (method.name == name) return runtime.make<BoundMethod>(object, method);
  }
  const auto& refused = methods.refused;
  const bool internal = name.starts_with("__") && name.ends_with("__") && !object.is(Type::kDict);
  if (internal || std::find(refused.begin(), refused.end(), name) != refused.end()) {
    refuse("{}.{} is not supported", type_name(object), name);
  }
  return Value::undefined(name);
}

}  // namespace protean::jinja
