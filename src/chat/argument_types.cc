#include "chat/argument_types.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>

#include "chat/json_scanner.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr int kMaxRefs = 16;
constexpr std::size_t kMaxArgumentDepth = 256;

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

ValueKinds kind_named(std::string_view type) {
  if (type == "string") return kTextKind;
  if (type == "integer") return kIntegerKind;
  if (type == "number") return kIntegerKind | kFractionKind;
  if (type == "boolean") return kBooleanKind;
  if (type == "null") return kNullKind;
  if (type == "array") return kArrayKind;
  return type == "object" ? kObjectKind : kAnyKind;
}

ValueKinds kind_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::string:
      return kTextKind;
    case json::kind::int64:
    case json::kind::uint64:
      return kIntegerKind;
    case json::kind::double_:  // 3.0 is an integer to JSON schema
      return std::trunc(value.get_double()) == value.get_double() ? kIntegerKind | kFractionKind
                                                                  : kFractionKind;
    case json::kind::bool_:
      return kBooleanKind;
    case json::kind::array:
      return kArrayKind;
    case json::kind::object:
      return kObjectKind;
    case json::kind::null:
      break;
  }
  return kNullKind;
}

class KindReader {
 public:
  explicit KindReader(const json::object& root) : root_(root) {}

  ValueKinds read(const json::value& schema, int depth) const {
    const json::object* object = schema.if_object();
    if (object == nullptr || depth > kMaxRefs) return kAnyKind;
    ValueKinds kinds = kAnyKind;
    if (const json::value* type = object->if_contains("type")) kinds &= of_type(*type);
    if (const json::value* value = object->if_contains("const")) kinds &= kind_of(*value);
    if (const json::value* values = object->if_contains("enum")) {
      kinds &= united(*values, [](const json::value& value) { return kind_of(value); });
    }
    const auto nested = [&](const json::value& one) { return read(one, depth + 1); };
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (const json::value* options = object->if_contains(keyword)) {
        kinds &= united(*options, nested);
      }
    }
    const json::value* all = object->if_contains("allOf");
    if (all != nullptr && all->is_array()) {
      for (const json::value& one : all->get_array()) kinds &= nested(one);
    }
    if (const json::value* target = referred(*object)) kinds &= nested(*target);
    return kinds;
  }

 private:
  template <class KindsOf>
  static ValueKinds united(const json::value& list, KindsOf kinds_of) {
    if (!list.is_array() || list.get_array().empty()) return kAnyKind;
    ValueKinds kinds = 0;
    for (const json::value& one : list.get_array()) kinds |= kinds_of(one);
    return kinds;
  }
  static ValueKinds of_type(const json::value& type) {
    const auto named = [](const json::value& one) {
      return one.is_string() ? kind_named(view(one.get_string())) : kAnyKind;
    };
    return type.is_array() ? united(type, named) : named(type);
  }
  const json::value* referred(const json::object& schema) const {
    const json::value* ref = schema.if_contains("$ref");
    if (ref == nullptr || !ref->is_string() || !view(ref->get_string()).starts_with("#/")) {
      return nullptr;
    }
    const json::value* at = nullptr;
    for (std::string_view rest = view(ref->get_string()).substr(2);;) {
      const std::string_view name = rest.substr(0, rest.find('/'));
      const json::object* inside = at == nullptr ? &root_ : at->if_object();
      at = inside == nullptr ? nullptr : inside->if_contains(name);
      if (at == nullptr || name.size() == rest.size()) return at;
      rest.remove_prefix(name.size() + 1);
    }
  }

  const json::object& root_;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

ValueKinds argument_kinds(const json::object& parameters, std::string_view name) {
  const KindReader reader(parameters);
  const json::value* properties = parameters.if_contains("properties");
  if (properties != nullptr && properties->is_object()) {
    if (const json::value* schema = properties->get_object().if_contains(name)) {
      return reader.read(*schema, 0);
    }
  }
  const json::value* others = parameters.if_contains("additionalProperties");
  return others == nullptr ? kAnyKind : reader.read(*others, 0);
}

std::string typed_argument(std::string_view text, ValueKinds kinds) {
  if (kinds == kTextKind) return json_quoted(text);
  const std::string_view bare = trimmed(text);
  json::error_code failed;
  const json::value value =
      json::parse({bare.data(), bare.size()}, failed, {}, {.max_depth = kMaxArgumentDepth});
  if (!failed && (kind_of(value) & kinds) != 0) return std::string(bare);
  if ((kinds & kBooleanKind) != 0 && (bare == "True" || bare == "False")) {
    return bare == "True" ? "true" : "false";
  }
  if ((kinds & kNullKind) != 0 && bare == "None") return "null";
  return json_quoted(text);
}

void append_escaped(char c, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (c == '"' || c == '\\') {
    (out += '\\') += c;
  } else if (byte >= 0x20) {
    out += c;
  } else if (c == '\n' || c == '\r' || c == '\t') {
    out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
  } else {
    out += byte < 0x10 ? "\\u000" : "\\u001";
    out += kHex[byte % 16];
  }
}

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) append_escaped(c, quoted);
  return quoted += '"';
}

}  // namespace protean
