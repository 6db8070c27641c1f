#include "jinja/names_reader.h"

#include <limits>

namespace protean::jinja {

namespace json = boost::json;

Value NamesReader::text(std::string_view text) const {
  const bool own = names_.is_own && names_.is_own(path_, text);
  return own ? Value::template_text(text) : Value::text(text);
}

Value NamesReader::object(const json::object& object) {
  std::vector<Pair> items;
  for (const auto& [name, value] : object) {
    path_.emplace_back(name.data(), name.size());
    items.emplace_back(Value::text(path_.back()), read(value));
    path_.pop_back();
  }
  return runtime_.dict(std::move(items));
}

Value NamesReader::read(const json::value& json) {
  const Deeper deeper(runtime_);
  switch (json.kind()) {
    case json::kind::null:
      return Value::none();
    case json::kind::bool_:
      return Value::boolean(json.get_bool());
    case json::kind::int64:
      return Value::integer(json.get_int64());
    case json::kind::uint64:
      if (json.get_uint64() > std::numeric_limits<std::int64_t>::max()) {
        return Value::number(static_cast<double>(json.get_uint64()));
      }
      return Value::integer(static_cast<std::int64_t>(json.get_uint64()));
    case json::kind::double_:
      return Value::number(json.get_double());
    case json::kind::string:
      return text(std::string_view(json.get_string()));
    case json::kind::array: {
      std::vector<Value> items;
      for (const json::value& item : json.get_array()) items.push_back(read(item));
      return runtime_.list(std::move(items));
    }
    case json::kind::object:
      return object(json.get_object());
  }
  return Value::none();
}

}  // namespace protean::jinja
