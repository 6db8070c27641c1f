#include "model/config_fields.h"

#include <cmath>
#include <limits>
#include <utility>

namespace protean {
namespace {

namespace json = boost::json;

}  // namespace

ConfigFields::ConfigFields(const json::object& object, const std::string& file, std::string within)
    : object_(object), file_(file), within_(std::move(within)) {}

const json::value* ConfigFields::find(std::string_view key) const {
  const json::value* value = object_.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string_view ConfigFields::one_of(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    if (has(key)) {
      return key;
    }
  }
  return *keys.begin();
}

void ConfigFields::fail_type(std::string_view key, std::string_view want) {
  fail(ErrorCode::kInvalidArgument, "\"{}{}\" must be {}: correct it", within_, key, want);
}

void ConfigFields::fail_missing(std::string_view key) {
  fail(ErrorCode::kInvalidArgument, "\"{}{}\" is missing: this is not the model's whole config",
       within_, key);
}

std::optional<int> ConfigFields::find_integer(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::int64_t* integer = value->if_int64();
  if (integer == nullptr || *integer < std::numeric_limits<int>::min() ||
      *integer > std::numeric_limits<int>::max()) {
    fail_type(key, "a whole number of 32 bits");
    return std::nullopt;
  }
  return static_cast<int>(*integer);
}

int ConfigFields::required_integer(std::string_view key) {
  if (!has(key)) {
    fail_missing(key);
  }
  return integer(key, 0);
}

std::optional<double> ConfigFields::find_number(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number() || !std::isfinite(value->to_number<double>())) {
    fail_type(key, "a finite number");
    return std::nullopt;
  }
  return value->to_number<double>();
}

double ConfigFields::required_number(std::string_view key) {
  if (!has(key)) {
    fail_missing(key);
  }
  return number(key, 0.0);
}

bool ConfigFields::boolean(std::string_view key, bool otherwise) {
  const json::value* value = find(key);
  if (value != nullptr && !value->is_bool()) {
    fail_type(key, "true or false");
    return otherwise;
  }
  return value == nullptr ? otherwise : value->get_bool();
}

std::string ConfigFields::text(std::string_view key, std::string_view otherwise) {
  const json::value* value = find(key);
  if (value != nullptr && !value->is_string()) {
    fail_type(key, "a string");
    return std::string(otherwise);
  }
  return std::string(value == nullptr ? otherwise : std::string_view(value->get_string()));
}

std::vector<std::string> ConfigFields::texts(std::string_view key) {
  std::vector<std::string> found;
  const json::value* value = find(key);
  if (value == nullptr) {
    return found;
  }
  const json::array* array = value->if_array();
  for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
    if (const json::string* text = (*array)[i].if_string()) {
      found.emplace_back(std::string_view(*text));
    }
  }
  if (array == nullptr || found.size() != array->size()) {
    fail_type(key, "a list of strings");
  }
  return found;
}

std::vector<std::int64_t> ConfigFields::integers(std::string_view key) {
  std::vector<std::int64_t> found;
  const json::value* value = find(key);
  if (value == nullptr) {
    return found;
  }
  const json::array alone = {*value};
  const json::array& array = value->is_array() ? value->get_array() : alone;
  for (const json::value& element : array) {
    if (const std::int64_t* number = element.if_int64()) {
      found.push_back(*number);
    } else {
      fail_type(key, "a whole number or a list of them");
    }
  }
  return found;
}

std::vector<float> ConfigFields::numbers(std::string_view key) {
  std::vector<float> found;
  const json::value* value = find(key);
  const json::array* array = value == nullptr ? nullptr : value->if_array();
  for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
    if ((*array)[i].is_number() && std::isfinite((*array)[i].to_number<double>())) {
      found.push_back(static_cast<float>((*array)[i].to_number<double>()));
    }
  }
  if (value != nullptr && (array == nullptr || found.size() != array->size())) {
    fail_type(key, "a list of numbers");
  }
  return found;
}

const json::object* ConfigFields::object(std::string_view key) {
  const json::value* value = find(key);
  if (value != nullptr && !value->is_object()) {
    fail_type(key, "an object");
    return nullptr;
  }
  return value == nullptr ? nullptr : &value->get_object();
}

}  // namespace protean
