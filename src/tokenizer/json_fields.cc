#include "tokenizer/json_fields.h"

#include <new>

namespace protean {
namespace {

namespace json = boost::json;

const json::object& empty_object() {
  static const json::object kEmpty;
  return kEmpty;
}

const json::array& empty_array() {
  static const json::array kEmpty;
  return kEmpty;
}

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

}  // namespace

Fields Fields::of(const json::value& value, std::string where, Complaint& complaint) {
  if (const json::object* object = value.if_object()) {
    return Fields(*object, std::move(where), complaint);
  }
  complaint.add(ErrorCode::kCorrupt, "{} is not an object", where);
  return Fields(empty_object(), std::move(where), complaint);
}

const json::value* Fields::find(std::string_view key) const {
  const json::value* found = object_->if_contains({key.data(), key.size()});
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool Fields::boolean(std::string_view key, bool fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  const bool* found = value->if_bool();
  if (found == nullptr) {
    wrong_type(key, "true or false");
  }
  return found == nullptr ? fallback : *found;
}

std::int64_t Fields::integer(std::string_view key, std::int64_t fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  const std::int64_t* found = value->if_int64();
  if (found == nullptr) {
    wrong_type(key, "an integer");
  }
  return found == nullptr ? fallback : *found;
}

std::string_view Fields::text(std::string_view key, std::string_view fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  const json::string* found = value->if_string();
  if (found == nullptr) {
    wrong_type(key, "a string");
  }
  return found == nullptr ? fallback : view(*found);
}

std::string_view Fields::required_text(std::string_view key) const {
  if (find(key) == nullptr) {
    complaint_->add(ErrorCode::kCorrupt, "{} has no '{}'", where_, key);
  }
  return text(key, "");
}

std::int64_t Fields::required_integer(std::string_view key) const {
  if (find(key) == nullptr) {
    complaint_->add(ErrorCode::kCorrupt, "{} has no '{}'", where_, key);
  }
  return integer(key, -1);
}

const json::array& Fields::array(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) {
    return empty_array();
  }
  const json::array* found = value->if_array();
  if (found == nullptr) {
    wrong_type(key, "an array");
  }
  return found == nullptr ? empty_array() : *found;
}

void Fields::wrong_type(std::string_view key, std::string_view wanted) const {
  complaint_->add(ErrorCode::kCorrupt, "'{}' of {} is not {}", key, where_, wanted);
}

Result<json::value> parse_json_object(std::string_view text) {
  boost::system::error_code problem;
  json::stream_parser parser;
  try {
    const std::size_t read = parser.write_some({text.data(), text.size()}, problem);
    if (!problem && read < text.size() &&
        text.find_first_not_of(" \t\r\n", read) != std::string_view::npos) {
      return make_error(ErrorCode::kCorrupt, "more text after the JSON object, at byte {}", read);
    }
    if (problem) {
      return make_error(ErrorCode::kCorrupt, "not JSON near byte {}: {}", read, problem.message());
    }
    if (!parser.done()) {
      return make_error(ErrorCode::kCorrupt, "the JSON ends early, at byte {}", text.size());
    }
    json::value value = parser.release();
    if (!value.is_object()) {
      return make_error(ErrorCode::kCorrupt, "the JSON is not an object");
    }
    return value;
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kExhausted, "no memory for {} bytes of JSON", text.size());
  }
}

}  // namespace protean
