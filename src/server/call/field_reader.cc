#include "server/call/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace protean {

namespace json = boost::json;

std::string describe(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::string:
      return value.get_string().empty() ? "an empty string" : "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
    case json::kind::double_:
      return fmt::format("{}", value.get_double());
    default:
      return json::serialize(value);
  }
}

namespace {

constexpr double kLargestReal = 9e15;  // doubles up to here tell integers apart

// Returns true if the number is too large, or written so that no range would accept it.
bool too_large(const json::value& value) {
  return value.is_uint64() || (value.is_double() && !(std::abs(value.get_double()) < kLargestReal));
}

}  // namespace

std::optional<std::int64_t> as_integer(const json::value& value, std::int64_t low,
                                       std::int64_t high) {
  std::int64_t number = 0;
  if (const std::int64_t* exact = value.if_int64()) {
    number = *exact;
  } else if (const double* real = value.if_double();
             real != nullptr && std::abs(*real) < kLargestReal && std::trunc(*real) == *real) {
    number = static_cast<std::int64_t>(*real);
  } else {
    return std::nullopt;
  }
  return number >= low && number <= high ? std::optional(number) : std::nullopt;
}

FieldReader::FieldReader(const json::object& object, Fields table, std::string path)
    : object_(object), table_(table), path_(std::move(path)) {}

const Field& FieldReader::field(std::string_view name) const {
  const auto found = std::find_if(table_.begin(), table_.end(),
                                  [&](const Field& field) { return field.name == name; });
  check(found != table_.end(), "a table lists each field that is read");
  return *found;
}

const json::value* FieldReader::value_of(std::string_view name, FieldKind kind) const {
  check(field(name).kind == kind, "a field is read as its table says");
  return refused(name);
}

const json::value* FieldReader::refused(std::string_view name) const {
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const json::value* FieldReader::find(std::string_view name) const {
  field(name);
  return refused(name);
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const json::value* value = value_of(name, FieldKind::kBoolean);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_bool()) {
    expect(name, "true or false", *value);
    return std::nullopt;
  }
  return value->get_bool();
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name) {
  const Field& listed = field(name);
  return read_integer(value_of(name, FieldKind::kInteger), name, listed.least, listed.most);
}

std::optional<std::int64_t> FieldReader::integer_within(std::string_view name, std::int64_t low,
                                                        std::int64_t high) {
  return read_integer(value_of(name, FieldKind::kAny), name, low, high);
}

std::optional<std::int64_t> FieldReader::read_integer(const json::value* value,
                                                      std::string_view name, std::int64_t low,
                                                      std::int64_t high) {
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<std::int64_t> number = as_integer(*value, low, high);
  if (!number) {
    expect(name,
           high == kNoLimit && !too_large(*value)
               ? fmt::format("an integer of at least {}", low)
               : fmt::format("an integer from {} to {}{}", low, high,
                             too_large(*value) ? ", in digits only" : ""),
           *value);
  }
  return number;
}

std::optional<float> FieldReader::number(std::string_view name) {
  const json::value* value = value_of(name, FieldKind::kNumber);
  if (value == nullptr) {
    return std::nullopt;
  }
  const NumberRange& range = field(name).range;
  const double number =
      value->is_number() ? value->to_number<double>() : std::numeric_limits<double>::quiet_NaN();
  const bool above = range.low_included ? number >= range.low : number > range.low;
  if (!above || !(number <= range.high)) {  // true for NaN
    expect(name,
           fmt::format("a number {} {} and at most {}",
                       range.low_included ? "of at least" : "above", range.low, range.high),
           *value);
    return std::nullopt;
  }
  return static_cast<float>(number);
}

std::optional<std::string> FieldReader::string(std::string_view name) {
  const json::value* value = value_of(name, FieldKind::kString);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    expect(name, "a string", *value);
    return std::nullopt;
  }
  return std::string(std::string_view(value->get_string()));
}

std::string FieldReader::required_string(std::string_view name) {
  std::optional<std::string> text = string(name);
  if (!text) {
    fail(name, fmt::format("{}{} is required: a string", path_, name));
  }
  return std::move(text).value_or("");
}

const json::array* FieldReader::array(std::string_view name) {
  const json::value* value = value_of(name, FieldKind::kArray);
  if (value != nullptr && !value->is_array()) {
    expect(name, "an array", *value);
    return nullptr;
  }
  return value == nullptr ? nullptr : &value->get_array();
}

const json::object* FieldReader::object(std::string_view name) {
  const json::value* value = value_of(name, FieldKind::kObject);
  if (value != nullptr && !value->is_object()) {
    expect(name, "an object", *value);
    return nullptr;
  }
  return value == nullptr ? nullptr : &value->get_object();
}

void FieldReader::expect(std::string_view name, std::string_view wanted, const json::value& given) {
  fail(name, fmt::format("{}{} must be {}, not {}", path_, name, wanted, describe(given)));
}

void FieldReader::fail(std::string_view name, std::string message) {
  if (!error_) {
    error_ = ApiError{.message = std::move(message), .param = path_ + std::string(name)};
  }
}

void FieldReader::adopt(const FieldReader& inner) {
  if (!error_) {
    error_ = inner.error_;
  }
}

}  // namespace protean
