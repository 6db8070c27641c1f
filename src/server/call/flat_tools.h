#pragma once

#include <array>
#include <string_view>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// How a dialect writes flat tools, {"name":...,"description":...,SCHEMA:{...}}, which have no
// object of the function inside.
struct FlatToolStyle {
  std::string_view place;  // how errors name tool {}: "tools[{}]"
  std::string_view type;   // the only one that is supported
  bool type_is_implied = false;
  std::string_view schema;  // the field that holds the JSON schema of the arguments
  bool schema_is_required = false;
  Fields table;  // the fields of a tool
};

// The table of a flat tool whose field for the schema is `schema`.
constexpr auto flat_tool_table(Field type, Field schema) {
  return std::array{
      type,
      schema,
      required(string_field("name", "1 to 64 of the characters a-z, A-Z, 0-9, _, - and .",
                            R"({"pattern":"^[a-zA-Z0-9_.-]{1,64}$"})")),
      string_field("description", "What the tool does, for the model."),
      boolean_field("strict",
                    "Holds the arguments to the schema even if the model may answer freely."),
      boolean_field("defer_loading", "Must be false: there is no tool search.")};
}

// Reads "tools" and adds each of them to `read` as OpenAI's function object.
void read_flat_tools(FieldReader& fields, const FlatToolStyle& style, ToolFields& read);

// Reads "name" of a tool choice, whose table lists it, and makes the model call that tool.
void read_chosen_tool(FieldReader& choice, ToolFields& read);

}  // namespace protean
