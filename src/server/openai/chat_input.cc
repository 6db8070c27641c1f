#include "server/openai/chat_input.h"

#include <fmt/format.h>

#include <array>
#include <set>

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant",
                                                 "tool"};

// Reads messages in order, because a tool's result must answer a call before it.
class MessageChecker {
 public:
  explicit MessageChecker(FieldReader& fields) : fields_(fields) {}

  void check(json::value& message, std::size_t index) {
    where_ = fmt::format("messages[{}]", index);
    json::object* object = message.if_object();
    json::value* role = object == nullptr ? nullptr : object->if_contains("role");
    if (role == nullptr || !role->is_string()) {
      return fail(" must be an object with a role");
    }
    const std::string_view name = role->get_string();
    if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
      return fail(fmt::format(".role must be one of {}, not \"{}\"", fmt::join(kRoles, ", "),
                              excerpt(name)));
    }
    const bool assistant = name == "assistant";
    if (object->contains("function_call")) {
      return fail(".function_call is not supported: use tool_calls");
    }
    if (assistant) {
      check_calls(*object);
    } else if (name == "tool") {
      check_result(*object);
    }
    if (name == "developer") {
      *role = "system";
    }
    check_content((*object)["content"], assistant);  // templates expect the key, even if null
  }

 private:
  void fail(std::string_view what) { fields_.fail("messages", where_ + std::string(what)); }

  void check_content(json::value& content, bool may_be_silent) {
    if (content.is_null()) {
      if (!may_be_silent) {
        fail(".content is missing");
      }
    } else if (const json::array* parts = content.if_array()) {
      join_parts(*parts, content);
    } else if (!content.is_string()) {
      fail(
          fmt::format(".content must be a string or an array of parts, not {}", describe(content)));
    }
  }

  // Joins a message's text parts to one string. Fails if a part has another type.
  void join_parts(const json::array& parts, json::value& content) {
    std::string joined;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const json::object* part = parts[i].if_object();
      const json::value* type = part == nullptr ? nullptr : part->if_contains("type");
      if (type != nullptr && type->is_string() && type->get_string() != "text") {
        return fail(fmt::format(".content[{}] is of type \"{}\", but this model reads text only", i,
                                excerpt(type->get_string())));
      }
      const json::value* text = part == nullptr ? nullptr : part->if_contains("text");
      if (type == nullptr || !type->is_string() || text == nullptr || !text->is_string()) {
        return fail(fmt::format(".content[{}] must be an object with type \"text\" and a text", i));
      }
      joined += (i == 0 ? "" : "\n");
      joined += std::string_view(text->get_string());
    }
    content = joined;
  }

  void check_calls(json::object& message) {
    const json::value* calls = message.if_contains("tool_calls");
    if (calls == nullptr || calls->is_null()) {
      message.erase("tool_calls");
      return;
    }
    if (!calls->is_array()) {
      return fail(fmt::format(".tool_calls must be an array, not {}", describe(*calls)));
    }
    for (std::size_t i = 0; i < calls->get_array().size(); ++i) {
      check_call(calls->get_array()[i], fmt::format(".tool_calls[{}]", i));
    }
  }

  void check_call(const json::value& call, const std::string& at) {
    const json::object* object = call.if_object();
    const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (function == nullptr || !function->is_object() || (type != nullptr && *type != "function")) {
      return fail(at + " must be an object with type \"function\" and a function");
    }
    const json::value* id = object->if_contains("id");
    if (id == nullptr || !id->is_string() || id->get_string().empty()) {
      return fail(at + ".id must be a non-empty string");
    }
    const json::value* name = function->get_object().if_contains("name");
    if (name == nullptr || !name->is_string() || name->get_string().empty()) {
      return fail(at + ".function.name must be a non-empty string");
    }
    const json::value* arguments = function->get_object().if_contains("arguments");
    if (arguments == nullptr || !(arguments->is_string() || arguments->is_object())) {
      return fail(at + ".function.arguments must be a string that holds a JSON object");
    }
    called_.emplace(std::string_view(id->get_string()));
  }

  void check_result(const json::object& message) {
    const json::value* id = message.if_contains("tool_call_id");
    if (id == nullptr || !id->is_string()) {
      return fail(".tool_call_id is missing: a tool's result names the call it answers");
    }
    if (called_.find(std::string_view(id->get_string())) == called_.end()) {
      fail(
          fmt::format(".tool_call_id \"{}\" answers no tool call of an assistant message before it",
                      excerpt(id->get_string())));
    }
  }

  FieldReader& fields_;
  std::string where_;
  std::set<std::string, std::less<>> called_;  // ids of calls so far
};

void read_template_variables(FieldReader& fields, ChatInput& read) {
  if (const json::object* kwargs = fields.object("chat_template_kwargs")) {
    read.template_kwargs = *kwargs;
  }
  if (const auto effort = fields.string("reasoning_effort")) {
    read.template_kwargs.insert(
        {{"reasoning_effort", *effort}});  // chat_template_kwargs come first
  }
}

}  // namespace

void check_messages(json::array& messages, FieldReader& fields) {
  MessageChecker checker(fields);
  for (std::size_t i = 0; i < messages.size() && !fields.failed(); ++i) {
    checker.check(messages[i], i);
  }
}

ChatInput read_chat_input(FieldReader& fields, json::object& body) {
  ChatInput read;
  read.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  const auto prompt = fields.boolean("add_generation_prompt");
  if (read.continue_final_message && prompt.value_or(false)) {
    fields.fail("continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other");
  }
  read.add_generation_prompt = prompt.value_or(!read.continue_final_message);
  read_template_variables(fields, read);
  const json::array* messages = fields.array("messages");
  if (messages == nullptr || messages->empty()) {
    fields.fail("messages", "messages is required: an array of at least one message");
    return read;
  }
  read.messages = std::move(body["messages"].get_array());
  check_messages(read.messages, fields);
  if (read.continue_final_message && !fields.failed()) {
    const json::value& content = read.messages.back().at("content");
    if (!content.is_string() || content.get_string().empty()) {
      fields.fail("continue_final_message",
                  "continue_final_message needs a last message with some text");
    }
  }
  return read;
}

}  // namespace protean
