#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

// Reads typed fields of a JSON object; null counts as absent. Keeps the first error and continues
// with defaults, so that callers check status() once at the end.
class ConfigFields {
 public:
  // Borrows both arguments. `within` is the prefix of a nested object in messages: "rope_scaling.".
  ConfigFields(const boost::json::object& object, const std::string& file, std::string within = {});

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Returns the first of these names that is set, or the first one.
  std::string_view one_of(std::initializer_list<std::string_view> keys) const;
  // Integers are refused beyond 32 bits.
  std::optional<int> find_integer(std::string_view key);
  int integer(std::string_view key, int otherwise) { return find_integer(key).value_or(otherwise); }
  int required_integer(std::string_view key);
  std::optional<double> find_number(std::string_view key);  // finite
  double number(std::string_view key, double otherwise) {
    return find_number(key).value_or(otherwise);
  }
  double required_number(std::string_view key);
  bool boolean(std::string_view key, bool otherwise);
  std::string text(std::string_view key, std::string_view otherwise);
  std::vector<std::string> texts(std::string_view key);      // a list of strings; empty if absent
  std::vector<std::int64_t> integers(std::string_view key);  // a list or a single integer
  std::vector<float> numbers(std::string_view key);          // a list of finite numbers
  const boost::json::object* object(std::string_view key);   // nullptr if absent

  // Keeps the first error.
  template <class... Args>
  void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) {
      error_ = make_error(code, "{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
    }
  }
  void require(const Status& status) {
    if (!status && !error_) {
      error_ = status.error();
    }
  }
  Status status() const { return error_ ? Status(*error_) : Status(); }

 private:
  const boost::json::value* find(std::string_view key) const;
  void fail_type(std::string_view key, std::string_view want);
  void fail_missing(std::string_view key);

  const boost::json::object& object_;
  const std::string& file_;
  std::string within_;
  std::optional<Error> error_;
};

}  // namespace protean
