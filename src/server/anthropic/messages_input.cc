#include "server/anthropic/messages_input.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "server/call/chat_turns.h"

namespace protean {
namespace {

namespace json = boost::json;

enum class Role { kUser, kAssistant, kSystem };

class MessagesReader {
 public:
  explicit MessagesReader(FieldReader& fields) : fields_(fields) {}

  json::array read() {
    if (const json::value* system = fields_.find("system")) {
      turns_.system(text_of(*system, "system"));
    }
    const json::array* messages = fields_.array("messages");
    if (messages == nullptr || messages->empty()) {
      fields_.fail("messages", "messages is required: an array of at least one message");
      return {};
    }
    for (std::size_t i = 0; i < messages->size() && !fields_.failed(); ++i) {
      read_message((*messages)[i], fmt::format("messages.{}", i));
    }
    return turns_.take();
  }

 private:
  const json::object* object(const json::value& value, const std::string& where) {
    if (!value.is_object()) {
      fields_.expect(where, "an object", value);
      return nullptr;
    }
    return &value.get_object();
  }

  void refuse_type(const std::string& where, std::string_view type, std::string_view supported) {
    fields_.fail(where + ".type", fmt::format("{}.type \"{}\" is not supported: only {}", where,
                                              excerpt(type), supported));
  }

  // Reads content that may hold text only. Ignores cache_control and citations, which do not change
  // the text.
  std::string text_of(const json::value& content, const std::string& where) {
    if (content.is_string()) {
      return std::string(std::string_view(content.get_string()));
    }
    if (!content.is_array()) {
      fields_.expect(where, "a string or an array of text blocks", content);
      return {};
    }
    std::string text;
    const json::array& blocks = content.get_array();
    for (std::size_t i = 0; i < blocks.size() && !fields_.failed(); ++i) {
      const std::string place = fmt::format("{}.{}", where, i);
      const json::object* block = object(blocks[i], place);
      if (block == nullptr) {
        break;
      }
      FieldReader reader(*block, kContentBlockTable, place + ".");
      if (const std::string type = reader.required_string("type"); type == "text") {
        text.append(i == 0 ? "" : "\n").append(reader.required_string("text"));
      } else if (!reader.failed()) {
        refuse_type(place, type, "\"text\" is");
      }
      fields_.adopt(reader);
    }
    return text;
  }

  void read_message(const json::value& value, const std::string& where) {
    const json::object* message = object(value, where);
    if (message == nullptr) {
      return;
    }
    FieldReader reader(*message, kAnthropicMessageTable, where + ".");
    const std::string role = reader.required_string("role");
    const json::value* content = reader.find("content");
    if (content == nullptr) {
      reader.fail("content", where + ".content is required: a string or an array of blocks");
    }
    fields_.adopt(reader);
    if (fields_.failed()) {
      return;
    }
    if (role == "system") {
      turns_.system(text_of(*content, where + ".content"));
    } else if (role == "user" || role == "assistant") {
      read_content(*content, where + ".content", role == "user" ? Role::kUser : Role::kAssistant);
    } else {
      fields_.fail(where + ".role",
                   fmt::format("{}.role must be \"user\", \"assistant\" or \"system\", not \"{}\"",
                               where, excerpt(role)));
    }
  }

  void read_content(const json::value& content, const std::string& where, Role role) {
    if (content.is_string()) {
      return add_text(content.get_string(), role);
    }
    if (!content.is_array()) {
      return fields_.expect(where, "a string or an array of blocks", content);
    }
    const json::array& blocks = content.get_array();
    if (blocks.empty()) {
      return fields_.fail(where, where + " must hold at least one block");
    }
    for (std::size_t i = 0; i < blocks.size() && !fields_.failed(); ++i) {
      const std::string place = fmt::format("{}.{}", where, i);
      if (const json::object* block = object(blocks[i], place)) {
        FieldReader reader(*block, kContentBlockTable, place + ".");
        read_block(reader, place, role);
        fields_.adopt(reader);
      }
    }
  }

  void add_text(std::string_view text, Role role) {
    role == Role::kUser ? turns_.user(text) : turns_.assistant(text);
  }

  void read_block(FieldReader& block, const std::string& where, Role role) {
    const std::string type = block.required_string("type");
    if (block.failed()) {
      return;
    }
    if (type == "text") {
      add_text(block.required_string("text"), role);
    } else if (type == "tool_result" && role == Role::kUser) {
      read_result(block, where);
    } else if (type == "tool_use" && role == Role::kAssistant) {
      read_call(block, where);
    } else {
      refuse_type(where, type,
                  role == Role::kUser ? "\"text\" and \"tool_result\" are, in a user's message"
                                      : "\"text\" and \"tool_use\" are, in an assistant's message");
    }
  }

  void read_call(FieldReader& block, const std::string& where) {
    const std::string id = block.required_string("id");
    const std::string name = block.required_string("name");
    const json::object* input = block.object("input");
    if (input == nullptr) {
      return block.fail("input", where + ".input is required: an object");
    }
    turns_.call(id, name, json::serialize(*input));
  }

  void read_result(FieldReader& block, const std::string& where) {
    const std::string id = block.required_string("tool_use_id");
    const json::value* content = block.find("content");
    std::string text = content == nullptr ? "" : text_of(*content, where + ".content");
    if (block.boolean("is_error").value_or(false)) {
      text.insert(0, "Error: ");
    }
    if (!block.failed() && !turns_.result(id, text)) {
      block.fail("tool_use_id", fmt::format("{}.tool_use_id \"{}\" is the id of no tool_use block "
                                            "in an earlier message",
                                            where, excerpt(id)));
    }
  }

  FieldReader& fields_;
  ChatTurns turns_{ChatTurns::UserTurns::kJoin};
};

}  // namespace

json::array read_messages_input(FieldReader& fields) {
  return MessagesReader(fields).read();
}

}  // namespace protean
