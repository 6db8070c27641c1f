#include "jinja/json_values.h"

#include <limits>

namespace protean::jinja {

namespace json = boost::json;

Value from_json(Runtime& runtime, const json::value& json) {
  const Deeper deeper(runtime);
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
      return Value::text(std::string_view(json.get_string()));
    case json::kind::array: {
      std::vector<Value> items;
      for (const json::value& item : json.get_array()) items.push_back(from_json(runtime, item));
      return runtime.list(std::move(items));
    }
    case json::kind::object: {
      std::vector<Pair> items;
      for (const auto& [name, value] : json.get_object()) {
        items.emplace_back(Value::text({name.data(), name.size()}), from_json(runtime, value));
      }
      return runtime.dict(std::move(items));
    }
  }
  return Value::none();
}

}  // namespace protean::jinja
