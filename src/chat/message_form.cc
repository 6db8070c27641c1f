#include "chat/message_form.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

namespace protean {
namespace {

namespace json = boost::json;

// The object under `key` of an object, or null.
json::object* object_in(json::value& value, std::string_view key) {
  json::object* object = value.if_object();
  json::value* member = object == nullptr ? nullptr : object->if_contains(key);
  return member == nullptr ? nullptr : member->if_object();
}

void form_arguments(json::value& call, const MessageForm& form) {
  json::object* function = object_in(call, "function");
  json::value* arguments = function == nullptr ? nullptr : function->if_contains("arguments");
  if (arguments == nullptr) return;
  if (form.arguments_as_text) {
    if (arguments->is_object()) *arguments = json::serialize(*arguments);
  } else if (arguments->is_string()) {
    json::error_code error;
    json::value parsed = json::parse(arguments->get_string(), error);
    if (!error && parsed.is_object()) *arguments = std::move(parsed);
  }
}

void form_content(json::object& message, const MessageForm& form) {
  json::value* content = message.if_contains("content");
  if (content == nullptr) return;
  const json::value* role = message.if_contains("role");
  if (form.null_as_empty && content->is_null() && role != nullptr && *role == "assistant") {
    *content = "";
  } else if (form.text_as_parts && content->is_string()) {
    *content = json::array{{{"type", "text"}, {"text", std::move(*content)}}};
  }
}

}  // namespace

json::array in_form(json::array messages, const MessageForm& form) {
  for (json::value& message : messages) {
    json::object* object = message.if_object();
    if (object == nullptr) continue;
    form_content(*object, form);
    json::value* calls = object->if_contains("tool_calls");
    if (calls == nullptr || !calls->is_array()) continue;
    for (json::value& call : calls->get_array()) form_arguments(call, form);
  }
  return messages;
}

}  // namespace protean
