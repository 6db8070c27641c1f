#include "server/call/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <set>

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxNameBytes = 64;

void check_tool(const json::value& tool, const std::string& where, FieldReader& fields) {
  const json::object* object = tool.if_object();
  const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  if (type == nullptr || !type->is_string()) {
    return fields.fail("tools", where + " must be an object with a type");
  }
  if (type->get_string() != "function") {
    return fields.fail("tools", fmt::format("{} is of type \"{}\", but only functions are "
                                            "supported",
                                            where, excerpt(type->get_string())));
  }
  const json::value* function = object->if_contains("function");
  if (function == nullptr || !function->is_object()) {
    return fields.fail("tools", where + ".function is required: an object");
  }
  FieldReader reader(function->get_object(), kFunctionTable, where + ".function.");
  const auto name = reader.string("name");
  if (!name || !is_function_name(*name)) {
    reader.fail("name", fmt::format("{}.function.name is required: {}", where, kFunctionNameRule));
  }
  reader.string("description");
  reader.boolean("strict");
  reader.object("parameters");
  fields.adopt(reader);
}

// Reads {"type":"function","function":{"name":...}}.
void read_named_choice(const json::object& choice, FieldReader& fields, ToolFields& read) {
  const json::value* type = choice.if_contains("type");
  const json::value* function = choice.if_contains("function");
  const json::object* object = function == nullptr ? nullptr : function->if_object();
  const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
  if (type == nullptr || *type != "function" || name == nullptr || !name->is_string()) {
    return fields.fail("tool_choice",
                       "tool_choice as an object must be {\"type\": \"function\", \"function\": "
                       "{\"name\": ...}}");
  }
  read.choice = ToolChoice::kRequired;
  read.only = std::string_view(name->get_string());
  const std::vector<std::string> names = tool_names(read.tools);
  if (std::find(names.begin(), names.end(), read.only) == names.end()) {
    fields.fail("tool_choice", fmt::format("tool_choice names the function \"{}\", which is not "
                                           "among the tools",
                                           excerpt(read.only)));
  }
}

void read_choice(FieldReader& fields, ToolFields& read) {
  const json::value* choice = fields.find("tool_choice");
  if (choice == nullptr) {
    return;
  }
  if (const json::object* object = choice->if_object()) {
    read_named_choice(*object, fields, read);
  } else if (*choice == "none") {
    read.choice = ToolChoice::kNone;
  } else if (*choice == "required") {
    read.choice = ToolChoice::kRequired;
    if (read.tools.empty()) {
      fields.fail("tool_choice", "tool_choice is \"required\", but there are no tools");
    }
  } else if (*choice != "auto") {
    fields.fail("tool_choice",
                "tool_choice must be \"none\", \"auto\", \"required\" or an object that names a "
                "function");
  }
}

GrammarSource literal(std::string_view text) {
  return {LiteralText{std::string(text)}};
}

GrammarSource sequence(std::vector<GrammarSource> parts) {
  return {Concatenation{std::move(parts)}};
}

const json::object& function_of(const json::value& tool) {
  return tool.at("function").get_object();
}

bool is_strict(const json::value& tool) {
  const json::value* strict = function_of(tool).if_contains("strict");
  return strict != nullptr && *strict == true;
}

JsonSchema arguments_schema(const json::value& tool) {
  const json::value* parameters = function_of(tool).if_contains("parameters");
  if (parameters == nullptr || !parameters->is_object() || parameters->get_object().empty()) {
    return {.schema = json::object{{"type", "object"}},
            .whitespace = kSpacedSeparators,
            .open_properties = true};
  }
  return {.schema = *parameters, .whitespace = kSpacedSeparators};
}

GrammarSource arguments_of(const json::value& tool, const ToolSyntax& syntax) {
  JsonSchema schema = arguments_schema(tool);
  if (!syntax.tags) {
    return {std::move(schema)};
  }
  std::vector<std::string> texts;
  const json::object& root = schema.schema.get_object();
  const json::value* properties = root.if_contains("properties");
  if (properties != nullptr && properties->is_object()) {
    for (const auto& member : properties->get_object()) {
      if (argument_kinds(root, member.key()) == kTextKind) {
        texts.emplace_back(std::string_view(member.key()));
      }
    }
  }
  return {TaggedArguments{.object = std::move(schema),
                          .before_key = syntax.tags->before_key,
                          .before_value = syntax.tags->before_value,
                          .after_value = syntax.tags->after_value,
                          .text_end = syntax.tags->text_end,
                          .texts = std::move(texts)}};
}

GrammarSource one_call(const ToolFields& tools, const ToolSyntax& syntax) {
  std::vector<GrammarSource> options;
  for (const json::value& tool : tools.tools) {
    const std::string_view name = function_of(tool).at("name").get_string();
    if (tools.only.empty() || tools.only == name) {
      options.push_back(
          sequence({literal(syntax.before_name), literal(name), literal(syntax.before_arguments),
                    arguments_of(tool, syntax), literal(syntax.after_arguments)}));
    }
  }
  return {Choice{std::move(options)}};
}

}  // namespace

bool is_function_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

bool check_tool_count(const json::array& tools, FieldReader& fields) {
  if (tools.size() > kMaxTools) {
    fields.fail("tools", fmt::format("tools has {} entries, at most {} are allowed", tools.size(),
                                     kMaxTools));
  }
  return tools.size() <= kMaxTools;
}

void check_tools(const json::array& tools, FieldReader& fields) {
  if (!check_tool_count(tools, fields)) {
    return;
  }
  std::set<std::string> seen;
  for (std::size_t i = 0; i < tools.size() && !fields.failed(); ++i) {
    check_tool(tools[i], fmt::format("tools[{}]", i), fields);
    if (!fields.failed() &&
        !seen.emplace(std::string_view(function_of(tools[i]).at("name").get_string())).second) {
      fields.fail("tools", fmt::format("tools[{}] has the name of a tool before it", i));
    }
  }
}

ToolFields read_tools(FieldReader& fields) {
  ToolFields read;
  if (const json::array* tools = fields.array("tools")) {
    check_tools(*tools, fields);
    read.tools = *tools;
  }
  read.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  if (!fields.failed()) {
    read_choice(fields, read);
  }
  return read;
}

std::vector<std::string> tool_names(const json::array& tools) {
  std::vector<std::string> names;
  for (const json::value& tool : tools) {
    names.emplace_back(std::string_view(function_of(tool).at("name").get_string()));
  }
  return names;
}

std::vector<OfferedTool> offered_tools(const json::array& tools) {
  std::vector<OfferedTool> offered;
  for (const json::value& tool : tools) {
    const json::value* parameters = function_of(tool).if_contains("parameters");
    const bool known = parameters != nullptr && parameters->is_object();
    offered.push_back({std::string(std::string_view(function_of(tool).at("name").get_string())),
                       known ? parameters->get_object() : json::object()});
  }
  return offered;
}

bool constrains(const ToolFields& tools) {
  return tools.choice == ToolChoice::kRequired ||
         (tools.offered() && std::any_of(tools.tools.begin(), tools.tools.end(), is_strict));
}

std::optional<AnswerFormat> tool_format_of(const ToolFields& tools, const ToolSyntax& syntax) {
  if (!constrains(tools)) {
    return std::nullopt;
  }
  const bool required = tools.choice == ToolChoice::kRequired;
  const GrammarSource call = one_call(tools, syntax);
  std::vector<GrammarSource> parts{literal(syntax.begin), call};
  if (tools.several_calls()) {
    parts.push_back({Repeat{.part = {sequence({literal(syntax.between), call})}}});
  }
  parts.push_back(literal(syntax.end));
  GrammarSource calls = sequence(std::move(parts));
  if (!required) {
    calls = sequence({{AnyText{syntax.triggers}}, {Repeat{.part = {std::move(calls)}, .most = 1}}});
  }
  std::string key = fmt::format("tools {} {} {} {} {}", required, tools.parallel, syntax.begin,
                                tools.only, json::serialize(tools.tools));
  return AnswerFormat{std::move(calls), std::move(key), "tools"};
}

}  // namespace protean
