#include "server/call/chat_turns.h"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

namespace protean {

namespace json = boost::json;

bool ChatTurns::last_is(std::string_view role) const {
  return !messages_.empty() && messages_.back().at("role").get_string() == role;
}

bool ChatTurns::ends_with_assistant() const {
  return last_is("assistant");
}

void ChatTurns::add_text(std::string_view role, std::string_view text, bool join) {
  if (!join || !last_is(role)) {
    messages_.push_back(json::object{{"role", role}, {"content", text}});
    return;
  }
  json::value& content = messages_.back().get_object()["content"];
  if (content.is_null()) {  // the assistant's message has only calls so far
    content = text;
  } else {
    content.get_string().append("\n").append(text);
  }
}

void ChatTurns::call(std::string_view id, std::string_view name, std::string_view arguments) {
  if (!last_is("assistant")) {
    messages_.push_back(json::object{{"role", "assistant"}, {"content", nullptr}});
  }
  json::object& message = messages_.back().get_object();
  json::value& calls = message["tool_calls"];
  if (calls.is_null()) {
    calls = json::array();
  }
  calls.get_array().push_back(
      json::object{{"id", id},
                   {"type", "function"},
                   {"function", json::object{{"name", name}, {"arguments", arguments}}}});
  call_ids_.emplace(id);
}

bool ChatTurns::result(std::string_view call_id, std::string_view text) {
  if (call_ids_.find(call_id) == call_ids_.end()) {
    return false;
  }
  messages_.push_back(json::object{{"role", "tool"}, {"tool_call_id", call_id}, {"content", text}});
  return true;
}

}  // namespace protean
