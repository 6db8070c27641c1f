#pragma once

// A template's values, which behave as Python's. A Value is a small copyable handle: text and
// objects belong to the template (literals), to the caller's JSON or to the Runtime, which all
// outlive every Value of a rendering. Nothing is freed before the rendering ends, so values may
// form cycles.
//
// Text has an origin: written by the template, given to it, or mixed, with ranges that the Runtime
// keeps. New text counts as given unless its maker says otherwise, so a builtin that ignores
// origins cannot pass off given text as the template's.

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

enum class Origin : std::uint8_t { kGiven, kTemplate, kMixed };

class Value {
 public:
  Value() : type_(Type::kUndefined), text_("") {}
  // `name` is for the error message if the value is used.
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
  // Markup is text that counts as safe HTML: plain text that is added to it is escaped.
  static Value text(std::string_view t, bool markup = false, Origin origin = Origin::kGiven) {
    Value v(Type::kString);
    v.text_ = t;
    v.markup_ = markup;
    v.origin_ = origin;
    return v;
  }
  static Value template_text(std::string_view t) { return text(t, false, Origin::kTemplate); }
  // Returns a piece of this text, with the same markup and origin. `t` is a view into as_text().
  Value part(std::string_view t) const { return text(t, markup_, origin_); }
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

  // Each requires its own type. as_integer() also takes booleans, as_number() any number.
  std::int64_t as_integer() const { return integer_; }
  double as_number() const {
    return type_ == Type::kFloat ? number_ : static_cast<double>(integer_);
  }
  std::string_view as_text() const { return text_; }  // the name of an undefined value
  Origin origin() const { return origin_; }
  Sequence& as_sequence() const { return *sequence_; }
  Dict& as_dict() const { return *dict_; }
  Namespace& as_namespace() const { return *namespace_; }
  Callable& as_callable() const { return *callable_; }

 private:
  explicit Value(Type type) : type_(type), integer_(0) {}

  Type type_;
  bool markup_ = false;
  Origin origin_ = Origin::kGiven;
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

// Python's ordered containers. All elements are computed when the sequence is made. A generator can
// be iterated only once: its first `consumed` elements are gone.
struct Sequence : Object {
  enum class Kind : std::uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  std::size_t consumed = 0;
  std::int64_t start = 0, stop = 0, step = 1;  // for a range
  bool group = false;  // a tuple that groupby made, with the attributes grouper and list

  bool indexable() const { return kind <= Kind::kRange; }
};

using Pair = std::pair<Value, Value>;

// Keeps insertion order. Immutable, since a sandboxed template cannot change a dict.
struct Dict : Object {
  std::vector<Pair> items;
  std::vector<std::uint32_t> by_key;  // positions in items, sorted by key

  const Value* find(const Value& key) const;  // nullptr if missing or not hashable
  const Value* find(std::string_view key) const { return find(Value::text(key)); }
};

// The only object that a template can change.
struct Namespace : Object {
  std::map<std::string_view, Value> attributes;
};

class Callable : public Object {
 public:
  virtual Value call(Runtime& runtime, Call& arguments) = 0;
  virtual Value attribute(Runtime& runtime, std::string_view name);
  virtual std::string_view kind() const = 0;  // for error messages: "macro"
};

// The arguments of one call. A callee takes the arguments it knows by position or name. finish()
// then throws Failure if any is left, so that no argument is silently ignored.
class Call {
 public:
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // An empty name means by position only.
  const Value* take(std::size_t index, std::string_view name);
  Value required(std::size_t index, std::string_view name);
  Value optional(std::size_t index, std::string_view name, Value otherwise);
  std::span<const Value> rest(std::size_t from);
  void finish(std::string_view callee) const;

 private:
  std::size_t taken_ = 0;
};

// A filter, test, method or global function. `self` is the value to its left.
using Builtin = Value (*)(Runtime& runtime, const Value& self, Call& arguments);

struct NamedBuiltin {
  std::string_view name;
  Builtin run;
};
Builtin find_builtin(std::span<const NamedBuiltin> table, std::string_view name);

// Returns Python's name of the type: "str", "int", "list".
std::string_view type_name(const Value& value);

// Whether Python can hash the value.
bool can_be_key(const Value& value);
// A total order of dict keys, in which 1, 1.0 and True are equal.
int compare_keys(const Value& a, const Value& b);

}  // namespace protean::jinja
