#pragma once

#include <boost/json/array.hpp>

#include <array>

#include "server/call/field_reader.h"

namespace protean {

inline constexpr std::array kContentBlockTable{
    required(string_field("type", "What the block is.",
                          R"({"enum":["text","tool_use","tool_result"]})")),
    string_field("text", "Of type text."),
    string_field("id", "Of type tool_use."),
    string_field("name", "Of type tool_use: the tool."),
    object_field("input", "Of type tool_use: the arguments."),
    string_field("tool_use_id", "Of type tool_result: the call that it answers."),
    any_field("content", R"({"type":["string","array"]})",
              "Of type tool_result: text or text blocks."),
    boolean_field("is_error", "Of type tool_result: the tool failed."),
};
inline constexpr std::array kAnthropicMessageTable{
    required(string_field("role", "Who says it.", R"({"enum":["user","assistant","system"]})")),
    required(any_field("content",
                       R"({"type":["string","array"],"items":{"type":"object",)"
                       R"("required":["type"]}})",
                       "Text, or content blocks.")),
};
// The table of read_messages_input().
inline constexpr std::array kMessagesInputTable{
    any_field("system", R"({"type":["string","array"]})",
              "Text or text blocks before all messages."),
    required(array_field("messages", "The conversation so far.", R"({"minItems":1})",
                         kAnthropicMessageTable)),
};

// Reads system and messages of Anthropic's Messages API as OpenAI's chat messages. Consecutive
// turns of one role become one turn, as in that API. A tool result that is an error begins with
// "Error: ". Blocks other than text and tool blocks are refused by name.
boost::json::array read_messages_input(FieldReader& fields);

}  // namespace protean
