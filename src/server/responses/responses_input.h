#pragma once

#include <boost/json/array.hpp>

#include <array>

#include "server/call/field_reader.h"

namespace protean {

inline constexpr std::array kContentPartTable{
    required(string_field("type", "What the part is.",
                          R"({"enum":["input_text","output_text","refusal"]})")),
    string_field("text", "Of the types input_text and output_text."),
    string_field("refusal", "Of type refusal."),
};
inline constexpr std::array kInputItemTable{
    string_field("type", "What the item is; message by default.",
                 R"({"enum":["message","function_call","function_call_output"]})"),
    string_field("role", "Of a message: who says it.",
                 R"({"enum":["user","assistant","system","developer"]})"),
    any_field("content", R"({"type":["string","array"]})", "Of a message: text or parts."),
    string_field("call_id", "Of a function_call, and of the output that answers it."),
    string_field("name", "Of a function_call: the function."),
    string_field("arguments", "Of a function_call: JSON text."),
    any_field("output", R"({"type":["string","array"]})",
              "Of a function_call_output: text or parts."),
};
// The table of read_responses_input().
inline constexpr std::array kResponsesInputTable{
    string_field("instructions", "A system message before the input."),
    required(any_field("input",
                       R"({"type":["string","array"],"minItems":1,"items":{"type":"object"}})",
                       "What the user says, or items: messages, calls and their outputs.")),
};

// Reads instructions and input of OpenAI's Responses API as chat messages: text items, and function
// calls with their outputs. The role "developer" becomes "system", which chat templates know. Other
// items, such as images and references to stored items, are refused by name.
boost::json::array read_responses_input(FieldReader& fields);

}  // namespace protean
