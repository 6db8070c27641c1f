#include "server/call/json_body.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <cmath>
#include <new>
#include <set>
#include <string>
#include <vector>

namespace protean {
namespace {

namespace json = boost::json;
using json::error_code;
using json::string_view;

constexpr std::size_t kMaxDepth = 64;
// Bounds the memory of a parsed body: a value takes 24 bytes, and its text may take 2.
constexpr std::size_t kMaxValues = 4'000'000;

// Builds the value and checks its parts. The parser calls it in document order.
class StrictHandler {
 public:
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();

  StrictHandler() { stack_.reset(); }
  json::value release() { return stack_.release(); }
  const std::string& complaint() const { return complaint_; }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code& ec) {
    keys_.emplace_back();
    return count(ec);
  }
  bool on_object_end(std::size_t n, error_code&) {
    keys_.pop_back();
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(error_code& ec) { return count(ec); }
  bool on_array_end(std::size_t n, error_code&) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(string_view part, std::size_t, error_code&) {
    key_.append(part);
    stack_.push_chars(part);
    return true;
  }
  bool on_key(string_view part, std::size_t, error_code& ec) {
    key_.append(part);
    stack_.push_key(part);
    if (!keys_.back().insert(key_).second) {
      return complain("the key \"" + excerpt(key_) + "\" is given twice", ec);
    }
    key_.clear();
    return true;
  }
  bool on_string_part(string_view part, std::size_t, error_code&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(string_view part, std::size_t, error_code& ec) {
    stack_.push_string(part);
    return count(ec);
  }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t value, string_view, error_code& ec) {
    stack_.push_int64(value);
    return count(ec);
  }
  bool on_uint64(std::uint64_t value, string_view, error_code& ec) {
    stack_.push_uint64(value);
    return count(ec);
  }
  bool on_double(double value, string_view, error_code& ec) {
    if (!std::isfinite(value)) {
      return complain("a number is larger than a double holds", ec);
    }
    stack_.push_double(value);
    return count(ec);
  }
  bool on_bool(bool value, error_code& ec) {
    stack_.push_bool(value);
    return count(ec);
  }
  bool on_null(error_code& ec) {
    stack_.push_null();
    return count(ec);
  }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  bool count(error_code& ec) {
    return ++values_ <= kMaxValues ||
           complain("there are more than " + std::to_string(kMaxValues) + " values", ec);
  }
  bool complain(std::string what, error_code& ec) {
    complaint_ = std::move(what);
    ec = json::error::syntax;
    return false;
  }

  json::value_stack stack_;
  std::vector<std::set<std::string, std::less<>>> keys_;  // keys of the objects around this place
  std::string key_;
  std::string complaint_;
  std::size_t values_ = 0;
};

ApiError at_position(std::string_view text, std::size_t offset, std::string_view what) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return {.message = fmt::format("the body is not valid JSON: {} at line {}, column {}", what, line,
                                 offset - line_start + 1)};
}

}  // namespace

Checked<json::value> parse_json_body(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<StrictHandler> parser(options);
  error_code ec;
  try {
    const std::size_t consumed = parser.write_some(false, text.data(), text.size(), ec);
    if (!ec && consumed < text.size()) {
      ec = json::error::extra_data;
    }
    if (!ec) {
      return parser.handler().release();
    }
    const std::string& complaint = parser.handler().complaint();
    return at_position(text, consumed, complaint.empty() ? ec.message() : complaint);
  } catch (const std::bad_alloc&) {
    throw;                           // the service answers for all requests
  } catch (const std::exception&) {  // lengths beyond the library's limits
    return ApiError{.status = 413, .message = "the body is too large to be parsed"};
  }
}

}  // namespace protean
