#include "server/responses/responses_input.h"

#include <fmt/format.h>

#include <boost/json/value.hpp>

#include "server/call/chat_turns.h"

namespace protean {
namespace {

namespace json = boost::json;

class InputReader {
 public:
  explicit InputReader(FieldReader& fields) : fields_(fields) {}

  json::array read() {
    if (const auto instructions = fields_.string("instructions")) {
      turns_.system(*instructions);
    }
    const json::value* input = fields_.find("input");
    if (input != nullptr && input->is_string()) {
      turns_.user(input->get_string());
      return turns_.take();
    }
    const json::array* items = input == nullptr ? nullptr : input->if_array();
    if (input != nullptr && items == nullptr) {
      fields_.expect("input", "a string or an array", *input);
    }
    if (items == nullptr || items->empty()) {
      fields_.fail("input", "input is required: a string or an array of at least one item");
      return {};
    }
    for (std::size_t i = 0; i < items->size() && !fields_.failed(); ++i) {
      const std::string where = fmt::format("input[{}]", i);
      if (!(*items)[i].is_object()) {
        fields_.expect(where, "an object", (*items)[i]);
        break;
      }
      FieldReader item((*items)[i].get_object(), kInputItemTable, where + ".");
      read_item(item, where);
      fields_.adopt(item);
    }
    return turns_.take();
  }

 private:
  void read_item(FieldReader& item, const std::string& where) {
    const std::string type = item.string("type").value_or("message");
    if (item.failed()) {
      return;
    }
    if (type == "message") {
      read_message(item, where);
    } else if (type == "function_call") {
      const std::string id = item.required_string("call_id");
      const std::string name = item.required_string("name");
      turns_.call(id, name, item.required_string("arguments"));
    } else if (type == "function_call_output") {
      read_output(item, where);
    } else if (type == "item_reference") {
      item.fail("type", where +
                            " refers to an item kept here, but this server keeps none: send "
                            "the item itself");
    } else {
      item.fail("type", fmt::format("{}.type \"{}\" is not supported: only \"message\", "
                                    "\"function_call\" and \"function_call_output\" are",
                                    where, excerpt(type)));
    }
  }

  void read_message(FieldReader& item, const std::string& where) {
    const std::string role = item.required_string("role");
    const std::string text = text_of(item, "content", where);
    if (role == "user") {
      turns_.user(text);
    } else if (role == "assistant") {
      turns_.assistant(text);
    } else if (role == "system" || role == "developer") {
      turns_.system(text);
    } else {
      item.fail("role", fmt::format("{}.role must be \"user\", \"assistant\", \"system\" or "
                                    "\"developer\", not \"{}\"",
                                    where, excerpt(role)));
    }
  }

  void read_output(FieldReader& item, const std::string& where) {
    const std::string id = item.required_string("call_id");
    const std::string text = text_of(item, "output", where);
    if (!item.failed() && !turns_.result(id, text)) {
      item.fail("call_id", fmt::format("{}.call_id \"{}\" is that of no function_call before it",
                                       where, excerpt(id)));
    }
  }

  std::string text_of(FieldReader& item, std::string_view name, const std::string& where) {
    const json::value* content = item.find(name);
    if (content == nullptr) {
      item.fail(name, fmt::format("{}.{} is required: a string or an array of parts", where, name));
      return {};
    }
    if (content->is_string()) {
      return std::string(std::string_view(content->get_string()));
    }
    const json::array* parts = content->if_array();
    if (parts == nullptr) {
      item.expect(name, "a string or an array of parts", *content);
      return {};
    }
    std::string text;
    for (std::size_t i = 0; i < parts->size() && !item.failed(); ++i) {
      const std::string place = fmt::format("{}.{}[{}]", where, name, i);
      const json::object* part = (*parts)[i].if_object();
      if (part == nullptr) {
        item.expect(fmt::format("{}[{}]", name, i), "an object", (*parts)[i]);
        break;
      }
      FieldReader reader(*part, kContentPartTable, place + ".");
      text.append(i == 0 ? "" : "\n").append(text_of_part(reader, place));
      item.adopt(reader);
    }
    return text;
  }

  std::string text_of_part(FieldReader& part, const std::string& where) {
    const std::string type = part.required_string("type");
    if (type == "input_text" || type == "output_text") {
      return part.required_string("text");
    }
    if (type == "refusal") {
      return part.required_string("refusal");
    }
    part.fail("type", fmt::format("{}.type \"{}\" is not supported: this model reads text only, "
                                  "in parts of type \"input_text\" or \"output_text\"",
                                  where, excerpt(type)));
    return {};
  }

  FieldReader& fields_;
  ChatTurns turns_{ChatTurns::UserTurns::kKeep};
};

}  // namespace

json::array read_responses_input(FieldReader& fields) {
  return InputReader(fields).read();
}

}  // namespace protean
