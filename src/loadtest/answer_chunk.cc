#include "loadtest/answer_chunk.h"

#include <array>
#include <boost/json.hpp>

#include "trace/text.h"

namespace protean::loadtest {
namespace {

namespace json = boost::json;

bool has_content(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) {
    return false;
  }
  const json::string* text = value->if_string();
  const json::array* list = value->if_array();
  return (text != nullptr && !text->empty()) || (list != nullptr && !list->empty());
}

void read_choice(const json::object& choice, AnswerChunk& chunk) {
  chunk.has_choice = true;
  chunk.has_text |= has_content(choice, "text");
  if (const json::value* delta = choice.if_contains("delta"); delta && delta->is_object()) {
    for (const char* key : {"content", "reasoning", "reasoning_content", "tool_calls", "refusal"}) {
      chunk.has_text |= has_content(delta->get_object(), key);
    }
  }
  if (const json::value* reason = choice.if_contains("finish_reason");
      reason && reason->is_string()) {
    chunk.finish_reason = reason->get_string();
  }
}

std::int64_t count_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  boost::system::error_code failed;
  const auto count = value && value->is_number() ? value->to_number<std::int64_t>(failed) : 0;
  return failed || count < 0 ? 0 : count;
}

Usage read_usage(const json::object& object) {
  Usage usage{.prompt_tokens = count_of(object, "prompt_tokens"),
              .completion_tokens = count_of(object, "completion_tokens")};
  const json::value* details = object.if_contains("prompt_tokens_details");
  if (details != nullptr && details->is_object()) {
    usage.cached_tokens = count_of(details->get_object(), "cached_tokens");
  }
  return usage;
}

std::string message_in(const json::object& object) {
  for (const char* key : {"error", "message", "detail"}) {
    const json::value* value = object.if_contains(key);
    if (value != nullptr && value->is_string()) {
      return std::string(value->get_string());
    }
    if (value != nullptr && value->is_object()) {
      return message_in(value->get_object());
    }
  }
  return {};
}

// Parses into `memory`, so that small chunks need no heap allocation.
json::value parse(std::string_view text, json::monotonic_resource& memory,
                  boost::system::error_code& failed) {
  return json::parse({text.data(), text.size()}, failed, &memory);
}

}  // namespace

Result<AnswerChunk> parse_answer_chunk(std::string_view data) {
  std::array<unsigned char, 4096> room;
  json::monotonic_resource memory(room.data(), room.size());
  boost::system::error_code failed;
  const json::value value = parse(data, memory, failed);
  const json::object* object = failed ? nullptr : value.if_object();
  if (object == nullptr) {
    return make_error(ErrorCode::kCorrupt, "a chunk is not a JSON object: {}",
                      quoted_for_error(data));
  }
  AnswerChunk chunk;
  if (const json::value* error = object->if_contains("error"); error && !error->is_null()) {
    chunk.error = message_in(*object);
    chunk.error = chunk.error.empty() ? std::string(data.substr(0, 200)) : chunk.error;
  }
  if (const json::value* choices = object->if_contains("choices"); choices && choices->is_array()) {
    for (const json::value& choice : choices->get_array()) {
      if (choice.is_object()) {
        read_choice(choice.get_object(), chunk);
      }
    }
  }
  if (const json::value* usage = object->if_contains("usage"); usage && usage->is_object()) {
    chunk.usage = read_usage(usage->get_object());
  }
  return chunk;
}

std::string error_message_of(std::string_view body) {
  boost::system::error_code failed;
  const json::value value = json::parse({body.data(), body.size()}, failed);
  std::string message;
  if (!failed && value.is_object()) {
    message = message_in(value.get_object());
  }
  return message.empty() ? std::string(trimmed(body.substr(0, 200))) : message;
}

}  // namespace protean::loadtest
