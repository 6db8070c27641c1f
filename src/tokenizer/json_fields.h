#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace protean {

// Collects the first error of a file. Readers continue with defaults after an error, and the caller
// checks once at the end.
class Complaint {
 public:
  explicit Complaint(std::string file) : file_(std::move(file)) {}

  template <class... Args>
  void add(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    add(make_error(code, format, std::forward<Args>(args)...));
  }
  void add(Error error) {
    if (!first_) {
      first_ = Error{error.code, file_ + ": " + error.message};
    }
  }
  bool any() const { return first_.has_value(); }
  const Error& error() const { return *first_; }

 private:
  std::string file_;
  std::optional<Error> first_;
};

// Reads members of a JSON object by type. null counts as missing. A member of another type adds an
// error to the Complaint. Does not own what it refers to.
class Fields {
 public:
  Fields(const boost::json::object& object, std::string where, Complaint& complaint)
      : object_(&object), where_(std::move(where)), complaint_(&complaint) {}
  // If `value` is not an object, complains and returns an empty one.
  static Fields of(const boost::json::value& value, std::string where, Complaint& complaint);

  const boost::json::value* find(std::string_view key) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  std::string_view text(std::string_view key, std::string_view fallback) const;
  // These two also complain about a missing member.
  std::string_view required_text(std::string_view key) const;
  std::int64_t required_integer(std::string_view key) const;
  const boost::json::array& array(std::string_view key) const;  // empty if missing

  const boost::json::object& object() const { return *object_; }
  const std::string& where() const { return where_; }
  Complaint& complaint() const { return *complaint_; }

 private:
  void wrong_type(std::string_view key, std::string_view wanted) const;

  const boost::json::object* object_;
  std::string where_;
  Complaint* complaint_;
};

// Fails, without the file's name, for text that is not JSON, nested too deeply or not an object.
Result<boost::json::value> parse_json_object(std::string_view text);

}  // namespace protean
