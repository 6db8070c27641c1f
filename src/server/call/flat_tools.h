#pragma once

#include <string_view>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// How a dialect writes its tools if it writes them flat:
// {"name":...,"description":...,SCHEMA:{...}} rather than with an object of the function inside.
struct FlatToolStyle {
  std::string_view place;  // of tool {} in the body, as messages name it: "tools[{}]"
  std::string_view type;   // of the tools that are supported
  bool type_is_implied = false;
  std::string_view schema;  // the field that holds the JSON schema of the arguments
  bool schema_is_required = false;
};

// Reads "tools" and adds each of them to `read` as OpenAI's function object.
void read_flat_tools(FieldReader& fields, const FlatToolStyle& style, ToolFields& read);

// Reads "name" of a tool choice, and has the model call that tool.
void read_chosen_tool(FieldReader& choice, ToolFields& read);

}  // namespace protean
