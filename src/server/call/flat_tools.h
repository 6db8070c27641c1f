#pragma once

#include <string_view>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// How a dialect writes flat tools, {"name":...,"description":...,SCHEMA:{...}}, which have no
// object of the function inside.
struct FlatToolStyle {
  std::string_view place;  // as errors name tool {}: "tools[{}]"
  std::string_view type;   // the only one that is supported
  bool type_is_implied = false;
  std::string_view schema;  // the field that holds the JSON schema of the arguments
  bool schema_is_required = false;
};

// Reads "tools" and adds each of them to `read` as OpenAI's function object.
void read_flat_tools(FieldReader& fields, const FlatToolStyle& style, ToolFields& read);

// Reads "name" of a tool choice, and makes the model call that tool.
void read_chosen_tool(FieldReader& choice, ToolFields& read);

}  // namespace protean
