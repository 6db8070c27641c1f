#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "http/api_error.h"

namespace protean {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();  // as `high`

struct NumberRange {
  double low = 0.0;
  double high = 0.0;
  bool low_included = true;
};

// Reads typed fields of a JSON object and keeps the first error, which names the field. A field
// that is null counts as absent. Unknown fields are ignored. Refers to the object.
class FieldReader {
 public:
  // `path` precedes field names in errors: "stream_options.".
  explicit FieldReader(const boost::json::object& object, std::string path = {});

  const boost::json::value* find(std::string_view name) const;  // nullptr if absent or null
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  std::optional<float> number(std::string_view name, const NumberRange& range);
  std::optional<std::string> string(std::string_view name);
  std::string required_string(std::string_view name);  // empty after an error
  const boost::json::array* array(std::string_view name);
  const boost::json::object* object(std::string_view name);

  // Fails with "NAME must be WANTED, not GIVEN".
  void expect(std::string_view name, std::string_view wanted, const boost::json::value& given);
  void fail(std::string_view name, std::string message);
  // Takes over the error of a reader of an object inside this one.
  void adopt(const FieldReader& inner);
  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const boost::json::object& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

// Returns a value as errors show it: "a string", "-1", "an array".
std::string describe(const boost::json::value& value);

// Returns an integer, written as 5 or 5.0, if it is within the range.
std::optional<std::int64_t> as_integer(const boost::json::value& value, std::int64_t low,
                                       std::int64_t high);

}  // namespace protean
