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

void check_kind(FieldReader& tool, std::string_view where, const FlatToolStyle& style) {
  const std::string type = style.type_is_implied
                               ? tool.string("type").value_or(std::string(style.type))
                               : tool.required_string("type");
  if (type != style.type) {
    tool.fail("type", fmt::format("{}.type \"{}\" is not supported: only \"{}\" tools are, which "
                                  "you run yourself",
                                  where, excerpt(type), style.type));
  }
  if (tool.boolean("defer_loading").value_or(false)) {
    tool.fail("defer_loading",
              fmt::format("{}.defer_loading is not supported: there is no tool search", where));
  }
}

void read_tool(FieldReader& tool, std::string_view where, const FlatToolStyle& style,
               ToolFields& read) {
  check_kind(tool, where, style);
  const json::object* schema = tool.object(style.schema);
  if (schema == nullptr && style.schema_is_required) {
    tool.fail(style.schema, fmt::format("{}.{} is required: a JSON schema", where, style.schema));
  }
  const std::string name = tool.required_string("name");
  if (!is_function_name(name)) {
    tool.fail("name", fmt::format("{}.name must be {}, not \"{}\"", where, kFunctionNameRule,
                                  excerpt(name)));
  } else if (is_offered(name, read)) {
    tool.fail("name", fmt::format("{}.name \"{}\" is that of a tool before it", where, name));
  }
  json::object function{{"name", name}};
  if (const auto description = tool.string("description")) {
    function["description"] = *description;
  }
  if (schema != nullptr) {
    function["parameters"] = *schema;
  }
  if (const auto strict = tool.boolean("strict")) {
    function["strict"] = *strict;
  }
  if (!tool.failed()) {
    read.tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
}

}  // namespace

void read_flat_tools(FieldReader& fields, const FlatToolStyle& style, ToolFields& read) {
  const json::array* tools = fields.array("tools");
  if (tools == nullptr || !check_tool_count(*tools, fields)) {
    return;
  }
  for (std::size_t i = 0; i < tools->size() && !fields.failed(); ++i) {
    const std::string where = fmt::format(fmt::runtime(style.place), i);
    if (!(*tools)[i].is_object()) {
      return fields.expect(where, "an object", (*tools)[i]);
    }
    FieldReader tool((*tools)[i].get_object(), style.table, where + ".");
    read_tool(tool, where, style, read);
    fields.adopt(tool);
  }
}

void read_chosen_tool(FieldReader& choice, ToolFields& read) {
  read.choice = ToolChoice::kRequired;
  read.only = choice.required_string("name");
  if (!is_offered(read.only, read)) {
    choice.fail("name",
                fmt::format("tool_choice.name \"{}\" is not among the tools", excerpt(read.only)));
  }
}

}  // namespace protean
