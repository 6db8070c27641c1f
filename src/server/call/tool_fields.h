#pragma once

#include "chat/tool_calls.h"
#include "grammar/grammar.h"
#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

inline constexpr std::size_t kMaxTools = 128;

// False, with a complaint, if there are more than kMaxTools.
bool check_tool_count(const boost::json::array& tools, FieldReader& fields);

// tools, tool_choice and parallel_tool_calls of a body.
ToolFields read_tools(FieldReader& fields);
// Of tools that are already OpenAI's objects: names, types, schemas.
void check_tools(const boost::json::array& tools, FieldReader& fields);

// Whether a function may be called so.
bool is_function_name(std::string_view text);
inline constexpr std::string_view kFunctionNameRule =
    "1 to 64 of the characters a-z, A-Z, 0-9, _, - and .";

std::vector<std::string> tool_names(const boost::json::array& tools);
std::vector<OfferedTool> offered_tools(const boost::json::array& tools);

// Do they say what an answer may hold? With tool_choice required or a named function, and with auto
// where a tool is strict.
bool constrains(const ToolFields& tools);
// The grammar that makes a model call tools so. None: it answers freely.
std::optional<AnswerFormat> tool_format_of(const ToolFields& tools, const ToolSyntax& syntax);

}  // namespace protean
