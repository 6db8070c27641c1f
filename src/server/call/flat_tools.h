#pragma once

#include <string_view>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// Adds a tool of a dialect that writes it flat, {"name":...,"description":...,SCHEMA:{...}}, to
// `tools` as OpenAI's function object. `tool` reads it, `where` is its place in the body, `schema`
// names the field of its schema.
void add_flat_tool(FieldReader& tool, std::string_view where, std::string_view schema,
                   ToolFields& tools);

// Has the model call this one. False: it is not among the tools.
bool choose_tool(std::string_view name, ToolFields& tools);

}  // namespace protean
