#include "chat/render.h"

#include <boost/json/parse.hpp>
#include <deque>
#include <limits>

#include "chat/interpreter.h"

namespace protean::jinja {
namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

// The texts of tool-call arguments, parsed; empty slots for what holds no object. In their order.
using ParsedArguments = std::deque<json::value>;

class MessageReader {
 public:
  MessageReader(Runtime& runtime, ParsedArguments& parsed) : runtime_(runtime), parsed_(parsed) {}

  Value messages(const json::array& messages) {
    std::vector<Value> values;
    for (const json::value& message : messages) {
      values.push_back(message.is_object()
                           ? replaced(message.get_object(), "tool_calls", &MessageReader::calls)
                           : from_json(runtime_, message));
    }
    return runtime_.list(std::move(values));
  }

 private:
  using Read = Value (MessageReader::*)(const json::value&);

  // The object, with what stands under `key` read in another way.
  Value replaced(const json::object& object, std::string_view key, Read read) {
    std::vector<Pair> items;
    for (const auto& [name, value] : object) {
      const std::string_view text(name.data(), name.size());
      items.emplace_back(Value::text(text),
                         text == key ? (this->*read)(value) : from_json(runtime_, value));
    }
    return runtime_.dict(std::move(items));
  }

  Value calls(const json::value& calls) {
    if (!calls.is_array()) return from_json(runtime_, calls);
    std::vector<Value> values;
    for (const json::value& call : calls.get_array()) {
      values.push_back(call.is_object()
                           ? replaced(call.get_object(), "function", &MessageReader::function)
                           : from_json(runtime_, call));
    }
    return runtime_.list(std::move(values));
  }

  Value function(const json::value& function) {
    if (!function.is_object()) return from_json(runtime_, function);
    return replaced(function.get_object(), "arguments", &MessageReader::arguments);
  }

  Value arguments(const json::value& arguments) {
    if (!arguments.is_string()) return from_json(runtime_, arguments);
    json::error_code error;
    json::value parsed = json::parse(arguments.get_string(), error);
    if (error || !parsed.is_object()) return from_json(runtime_, arguments);
    return from_json(runtime_, parsed_.emplace_back(std::move(parsed)));
  }

  Runtime& runtime_;
  ParsedArguments& parsed_;
};

Value context_of(Runtime& runtime, MessageReader& reader, const json::array& messages,
                 const ChatContext& context) {
  std::vector<Pair> names;
  const auto put = [&](std::string_view name, Value value) {
    names.emplace_back(Value::text(name), value);
  };
  put("bos_token", Value::text(context.bos_token));
  put("eos_token", Value::text(context.eos_token));
  put("add_generation_prompt", Value::boolean(context.add_generation_prompt));
  put("documents", Value::none());
  // A request may set any of the above, but not speak for the messages and the tools.
  for (const auto& [name, value] : context.template_kwargs) {
    put({name.data(), name.size()}, from_json(runtime, value));
  }
  std::vector<Value> tools;
  for (const json::value& tool : context.tools) tools.push_back(from_json(runtime, tool));
  put("tools", tools.empty() ? Value::none() : runtime.list(std::move(tools)));
  put("messages", reader.messages(messages));
  return runtime.dict(std::move(names));
}

}  // namespace

Value from_json(Runtime& runtime, const json::value& json) {
  const Deeper deeper(runtime);
  switch (json.kind()) {
    case json::kind::null:
      return Value::none();
    case json::kind::bool_:
      return Value::boolean(json.get_bool());
    case json::kind::int64:
      return Value::integer(json.get_int64());
    case json::kind::uint64:
      if (json.get_uint64() > std::numeric_limits<std::int64_t>::max()) {
        return Value::number(static_cast<double>(json.get_uint64()));
      }
      return Value::integer(static_cast<std::int64_t>(json.get_uint64()));
    case json::kind::double_:
      return Value::number(json.get_double());
    case json::kind::string:
      return Value::text(view(json.get_string()));
    case json::kind::array: {
      std::vector<Value> items;
      for (const json::value& item : json.get_array()) items.push_back(from_json(runtime, item));
      return runtime.list(std::move(items));
    }
    case json::kind::object: {
      std::vector<Pair> items;
      for (const auto& [name, value] : json.get_object()) {
        items.emplace_back(Value::text({name.data(), name.size()}), from_json(runtime, value));
      }
      return runtime.dict(std::move(items));
    }
  }
  return Value::none();
}

Result<std::string> render_chat(const Template& source, const json::array& messages,
                                const ChatContext& context, const Limits& limits) {
  ParsedArguments parsed;
  Runtime runtime(limits, context.now ? &*context.now : nullptr);
  try {
    MessageReader reader(runtime, parsed);
    const Value names = context_of(runtime, reader, messages, context);
    return Interpreter(source, names.as_dict(), runtime).render();
  } catch (const Failure& failure) {
    const int line = failure.line != 0 ? failure.line : runtime.line();
    return make_error(failure.error.code, "chat template line {}: {}", line, failure.error.message);
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "rendering the chat template failed: {}", error.what());
  }
}

}  // namespace protean::jinja
