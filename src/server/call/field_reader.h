#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "http/api_error.h"
#include "server/call/field.h"

namespace protean {

// Reads the fields of a JSON object that a table lists, and keeps the first error, which names the
// field. A field that is null counts as absent. Unknown fields are ignored. Refers to the object.
// The table must list each field that is read, with the kind of its reading function.
class FieldReader {
 public:
  // `path` precedes field names in errors: "stream_options.".
  FieldReader(const boost::json::object& object, Fields table, std::string path = {});

  const boost::json::value* find(std::string_view name) const;  // nullptr if absent or null
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name);
  std::optional<float> number(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  std::string required_string(std::string_view name);  // empty after an error
  const boost::json::array* array(std::string_view name);
  const boost::json::object* object(std::string_view name);
  // Reads a field of kind kAny as an integer within these limits.
  std::optional<std::int64_t> integer_within(std::string_view name, std::int64_t low,
                                             std::int64_t high);
  // Returns the value of a field that no table lists because it is refused; nullptr if absent or
  // null.
  const boost::json::value* refused(std::string_view name) const;

  // Fails with "NAME must be WANTED, not GIVEN".
  void expect(std::string_view name, std::string_view wanted, const boost::json::value& given);
  void fail(std::string_view name, std::string message);
  // Takes over the error of a reader of an object inside this one.
  void adopt(const FieldReader& inner);
  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Field& field(std::string_view name) const;
  const boost::json::value* value_of(std::string_view name, FieldKind kind) const;
  std::optional<std::int64_t> read_integer(const boost::json::value* value, std::string_view name,
                                           std::int64_t low, std::int64_t high);

  const boost::json::object& object_;
  const Fields table_;
  const std::string path_;
  std::optional<ApiError> error_;
};

// Returns a value as errors show it: "a string", "-1", "an array".
std::string describe(const boost::json::value& value);

// Returns an integer, written as 5 or 5.0, if it is within the range.
std::optional<std::int64_t> as_integer(const boost::json::value& value, std::int64_t low,
                                       std::int64_t high);

}  // namespace protean
