#pragma once

// A template's values: Python's, as far as a template can tell. A Value is a small copyable handle;
// text and objects belong to the template (literals), to the caller's JSON, or to the Runtime of
// one render, and all of these outlive every Value of that render. Nothing is freed before the
// render ends, so values may form cycles and nest deeply without harm.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace protean::jinja {

class Runtime;
class Call;
struct Sequence;
struct Dict;
struct Namespace;
class Callable;

enum class Type : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kCallable
};

class Value {
 public:
  Value() : type_(Type::kUndefined), text_("") {}
  // The name is for the message when it is used after all.
  static Value undefined(std::string_view name) {
    Value v;
    v.text_ = name;
    return v;
  }
  static Value none() { return Value(Type::kNone); }
  static Value boolean(bool b) {
    Value v(Type::kBool);
    v.integer_ = b ? 1 : 0;
    return v;
  }
  static Value integer(std::int64_t i) {
    Value v(Type::kInt);
    v.integer_ = i;
    return v;
  }
  static Value number(double d) {
    Value v(Type::kFloat);
    v.number_ = d;
    return v;
  }
  // Markup is text that counts as safe HTML: adding plain text to it escapes that text.
  static Value text(std::string_view t, bool markup = false) {
    Value v(Type::kString);
    v.text_ = t;
    v.markup_ = markup;
    return v;
  }
  Value(Sequence* s) : type_(Type::kSequence), sequence_(s) {}
  Value(Dict* d) : type_(Type::kDict), dict_(d) {}
  Value(Namespace* n) : type_(Type::kNamespace), namespace_(n) {}
  Value(Callable* c) : type_(Type::kCallable), callable_(c) {}

  Type type() const { return type_; }
  bool is(Type type) const { return type_ == type; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_markup() const { return type_ == Type::kString && markup_; }
  bool is_integer() const { return type_ == Type::kInt || type_ == Type::kBool; }  // as in Python
  bool is_number() const { return is_integer() || type_ == Type::kFloat; }

  // Each is for its own type only; as_integer also for booleans, as_number for every number.
  std::int64_t as_integer() const { return integer_; }
  double as_number() const {
    return type_ == Type::kFloat ? number_ : static_cast<double>(integer_);
  }
  std::string_view as_text() const { return text_; }  // of an undefined value: its name
  Sequence& as_sequence() const { return *sequence_; }
  Dict& as_dict() const { return *dict_; }
  Namespace& as_namespace() const { return *namespace_; }
  Callable& as_callable() const { return *callable_; }

 private:
  explicit Value(Type type) : type_(type), integer_(0) {}

  Type type_;
  bool markup_ = false;
  union {
    std::int64_t integer_;
    double number_;
    std::string_view text_;
    Sequence* sequence_;
    Dict* dict_;
    Namespace* namespace_;
    Callable* callable_;
  };
};

struct Object {
  virtual ~Object() = default;
};

// Python's ordered containers, all computed when they are made. Those from kGenerator on can be
// walked once only: `consumed` elements are gone.
struct Sequence : Object {
  enum class Kind : std::uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  std::size_t consumed = 0;
  std::int64_t start = 0, stop = 0, step = 1;  // of a range
  bool group = false;  // a tuple of groupby, whose parts have names: grouper and list

  bool indexable() const { return kind <= Kind::kRange; }
};

using Pair = std::pair<Value, Value>;

// Insertion-ordered and never changed once made: a sandboxed template has no way to.
struct Dict : Object {
  std::vector<Pair> items;
  std::vector<std::uint32_t> by_key;  // positions in items, sorted by key

  const Value* find(const Value& key) const;  // nullptr also for a key that cannot be one
  const Value* find(std::string_view key) const { return find(Value::text(key)); }
};

// The one thing a template can change after making it.
struct Namespace : Object {
  std::map<std::string_view, Value> attributes;
};

class Callable : public Object {
 public:
  virtual Value call(Runtime& runtime, Call& arguments) = 0;
  virtual Value attribute(Runtime& runtime, std::string_view name);
  virtual std::string_view kind() const = 0;  // for messages: "macro"
};

// Arguments of one call. A callee takes what it knows by position or name; finish() then refuses
// what is left, so that no argument is ever ignored.
class Call {
 public:
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // An empty name: by position only.
  const Value* take(std::size_t index, std::string_view name);
  Value required(std::size_t index, std::string_view name);
  Value optional(std::size_t index, std::string_view name, Value otherwise);
  std::span<const Value> rest(std::size_t from);
  void finish(std::string_view callee) const;

 private:
  std::size_t taken_ = 0;
};

// A filter, test, method or global function; `self` is what stands left of it.
using Builtin = Value (*)(Runtime& runtime, const Value& self, Call& arguments);

struct NamedBuiltin {
  std::string_view name;
  Builtin run;
};
Builtin find_builtin(std::span<const NamedBuiltin> table, std::string_view name);

// "str", "int", "list": the name Python's messages use.
std::string_view type_name(const Value& value);

// A total order over values that can be dict keys (1, 1.0 and True are the same key). False when
// one of them cannot.
bool can_be_key(const Value& value);
int compare_keys(const Value& a, const Value& b);

}  // namespace protean::jinja
