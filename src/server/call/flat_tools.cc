#include "server/call/flat_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/call/tool_fields.h"

namespace protean {

namespace json = boost::json;

namespace {

bool is_offered(std::string_view name, const ToolFields& tools) {
  const std::vector<std::string> names = tool_names(tools.tools);
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void add_flat_tool(FieldReader& tool, std::string_view where, std::string_view schema,
                   ToolFields& tools) {
  json::object function;
  const std::string name = tool.required_string("name");
  if (!is_function_name(name)) {
    tool.fail("name", fmt::format("{}.name must be {}, not \"{}\"", where, kFunctionNameRule,
                                  excerpt(name)));
  } else if (is_offered(name, tools)) {
    tool.fail("name", fmt::format("{}.name \"{}\" is that of a tool before it", where, name));
  }
  function["name"] = name;
  if (const auto description = tool.string("description")) {
    function["description"] = *description;
  }
  if (const json::object* parameters = tool.object(schema)) {
    function["parameters"] = *parameters;
  }
  if (const auto strict = tool.boolean("strict")) {
    function["strict"] = *strict;
  }
  if (!tool.failed()) {
    tools.tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
}

bool choose_tool(std::string_view name, ToolFields& tools) {
  tools.choice = ToolChoice::kRequired;
  tools.only = name;
  return is_offered(name, tools);
}

}  // namespace protean
