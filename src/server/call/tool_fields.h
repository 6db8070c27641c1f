#pragma once

#include <array>

#include "chat/tool_calls.h"
#include "grammar/grammar.h"
#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

inline constexpr std::size_t kMaxTools = 128;

inline constexpr std::array kFunctionTable{
    required(string_field("name", "1 to 64 of the characters a-z, A-Z, 0-9, _, - and .",
                          R"({"pattern":"^[a-zA-Z0-9_.-]{1,64}$"})")),
    string_field("description", "What the function does, for the model."),
    boolean_field("strict",
                  "Holds the arguments to the schema even if the model may answer freely."),
    object_field("parameters", "The JSON schema of the arguments."),
};
inline constexpr std::array kToolTable{
    required(string_field("type", "Only functions are supported.", R"({"const":"function"})")),
    required(object_field("function", "The function that the model may call.", kFunctionTable)),
};
inline constexpr Field kToolsField =
    array_field("tools", "Functions that the model may call.", R"({"maxItems":128})", kToolTable);
// The table of read_tools().
inline constexpr std::array kToolsTable{
    kToolsField,
    any_field(
        "tool_choice",
        R"({"anyOf":[{"enum":["none","auto","required"]},{"type":"object","required":)"
        R"(["type","function"],"properties":{"type":{"const":"function"},"function":)"
        R"({"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}}}]})",
        "Whether the model calls functions, and which."),
    boolean_field("parallel_tool_calls", "Allows several calls in an answer; true by default."),
};

// Fails and returns false if there are more than kMaxTools.
bool check_tool_count(const boost::json::array& tools, FieldReader& fields);

// Reads tools, tool_choice and parallel_tool_calls of a body.
ToolFields read_tools(FieldReader& fields);
// Checks names, types and schemas of OpenAI's tool objects.
void check_tools(const boost::json::array& tools, FieldReader& fields);

// Returns true if a function may have this name.
bool is_function_name(std::string_view text);
inline constexpr std::string_view kFunctionNameRule =
    "1 to 64 of the characters a-z, A-Z, 0-9, _, - and .";

std::vector<std::string> tool_names(const boost::json::array& tools);
std::vector<OfferedTool> offered_tools(const boost::json::array& tools);

// Returns true if the tools limit what an answer may hold: if tool_choice is "required" or a named
// function, or if it is "auto" and a tool is strict.
bool constrains(const ToolFields& tools);
// Returns the grammar that makes a model call tools so, or none if it answers freely.
std::optional<AnswerFormat> tool_format_of(const ToolFields& tools, const ToolSyntax& syntax);

}  // namespace protean
