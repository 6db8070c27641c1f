#pragma once

#include <array>
#include <boost/json/object.hpp>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// What OpenAI's messages look like; MessageChecker says what is wrong with others.
inline constexpr std::array kMessageTable{
    required(string_field("role", "Who says it.",
                          R"({"enum":["system","developer","user","assistant","tool"]})")),
    any_field("content",
              R"({"type":["string","array"],"items":{"type":"object","required":["type","text"],)"
              R"("properties":{"type":{"const":"text"},"text":{"type":"string"}}}})",
              "The text, or parts of type text; may be null in an assistant's message."),
    any_field("tool_calls",
              R"({"type":"array","items":{"type":"object","required":["id","function"],)"
              R"("properties":{"id":{"type":"string","minLength":1},"type":{"const":"function"},)"
              R"("function":{"type":"object","required":["name","arguments"],"properties":{"name":)"
              R"({"type":"string","minLength":1},"arguments":{"type":["string","object"]}}}}}})",
              "The functions that the assistant called."),
    any_field("tool_call_id", R"({"type":"string"})", "The call that a tool's message answers."),
};
// The table of read_chat_input().
inline constexpr std::array kChatInputTable{
    required(
        array_field("messages", "The conversation so far.", R"({"minItems":1})", kMessageTable)),
    boolean_field("add_generation_prompt", "Ends the prompt where the assistant begins to speak."),
    boolean_field("continue_final_message", "Lets the answer continue the last message."),
    object_field("chat_template_kwargs", "Variables for the chat template."),
    string_field("reasoning_effort", "A variable for the chat template."),
};

// Reads the messages of a chat and how they are shown to the model. Moves the messages out of
// `body`, which `fields` reads. Roles must be known, content must be text, and tool results must
// answer a call.
ChatInput read_chat_input(FieldReader& fields, boost::json::object& body);

// Checks OpenAI's message objects and brings them into the form that chat templates expect: content
// parts are joined, and "developer" becomes "system".
void check_messages(boost::json::array& messages, FieldReader& fields);

}  // namespace protean
