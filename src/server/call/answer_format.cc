#include "server/call/answer_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <set>

#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxChoices = 1024;
constexpr std::size_t kMaxFormatNameBytes = 64;

using Format = std::optional<AnswerFormat>;

// Reads a schema given as an object, as true or false, or as text that holds one of these.
Format read_schema(const json::value& value, FieldReader& fields, std::string_view field) {
  if (const json::string* text = value.if_string()) {
    Checked<json::value> parsed = parse_json_body(*text);
    if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
      fields.fail(field,
                  fmt::format("{} holds text that is no JSON schema: {}", field, error->message));
      return std::nullopt;
    }
    return json_format(std::get<json::value>(parsed), field);
  }
  if (!value.is_object() && !value.is_bool()) {
    fields.expect(field, "a JSON schema: an object", value);
    return std::nullopt;
  }
  return json_format(value, field);
}

Format read_regex(const json::value& value, FieldReader& fields, std::string_view field) {
  if (!value.is_string() || value.get_string().empty()) {
    fields.expect(field, "a non-empty string", value);
    return std::nullopt;
  }
  const std::string pattern(std::string_view(value.get_string()));
  return AnswerFormat{{RegexPattern{pattern}}, "regex " + pattern, std::string(field)};
}

Format read_gbnf(const json::value& value, FieldReader& fields, std::string_view field) {
  if (!value.is_string() || value.get_string().empty()) {
    fields.expect(field, "a grammar in GBNF: a non-empty string", value);
    return std::nullopt;
  }
  const std::string text(std::string_view(value.get_string()));
  return AnswerFormat{{GbnfText{text}}, "gbnf " + text, std::string(field)};
}

// Reads llama-server's "grammar", which its clients send empty if there is none.
Format read_own_grammar(const json::value& value, FieldReader& fields, std::string_view field) {
  return value.is_string() && value.get_string().empty() ? std::nullopt
                                                         : read_gbnf(value, fields, field);
}

Format read_choices(const json::value& value, FieldReader& fields, std::string_view field) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty() || list->size() > kMaxChoices) {
    fields.fail(field, fmt::format("{} must be an array of 1 to {} strings", field, kMaxChoices));
    return std::nullopt;
  }
  Choice choice;
  std::set<std::string_view> seen;
  for (const json::value& one : *list) {
    if (!one.is_string() || one.get_string().empty()) {
      fields.fail(field,
                  fmt::format("{} must hold non-empty strings, not {}", field, describe(one)));
      return std::nullopt;
    }
    if (seen.insert(one.get_string()).second) {
      choice.options.push_back({LiteralText{std::string(std::string_view(one.get_string()))}});
    }
  }
  return AnswerFormat{{std::move(choice)}, "choice " + json::serialize(*list), std::string(field)};
}

Format read_response_format(FieldReader& fields) {
  const json::object* format = fields.object("response_format");
  if (format == nullptr) {
    return std::nullopt;
  }
  FieldReader reader(*format, kResponseFormatTable, "response_format.");
  const std::string type = reader.string("type").value_or("");
  Format read;
  if (type == "json_object") {
    const json::value* schema = reader.find("schema");  // llama-server's way
    read = schema == nullptr ? any_json_object("response_format")
                             : read_schema(*schema, reader, "schema");
  } else if (type == "json_schema") {
    const json::object* wrapper = reader.object("json_schema");
    FieldReader inner(wrapper == nullptr ? *format : *wrapper, kJsonSchemaTable,
                      "response_format.json_schema.");
    const auto name = inner.string("name");
    const json::value* schema = inner.find("schema");
    inner.boolean("strict");
    inner.string("description");
    if (wrapper == nullptr || schema == nullptr) {
      inner.fail("schema", "response_format.json_schema.schema is required: a JSON schema");
    } else if (name && (name->empty() || name->size() > kMaxFormatNameBytes)) {
      inner.fail("name", fmt::format("response_format.json_schema.name must have 1 to {} bytes",
                                     kMaxFormatNameBytes));
    } else {
      read = read_schema(*schema, inner, "schema");
    }
    reader.adopt(inner);
  } else if (type != "text") {
    reader.fail("type",
                "response_format.type must be \"text\", \"json_object\" or \"json_schema\"");
  }
  fields.adopt(reader);
  if (read) {
    read->field = "response_format";
  }
  return read;
}

// Reads the white space between the tokens of JSON that `format` is to have: a pattern, vLLM's
// field `pattern_field`, or the usual separators if `spaced`.
void read_whitespace(FieldReader& fields, std::string_view pattern_field, bool spaced,
                     Format& format) {
  const auto pattern = fields.string(pattern_field);
  if (!pattern && !spaced) {
    return;
  }
  JsonSchema* schema = format ? std::get_if<JsonSchema>(&format->source.what) : nullptr;
  if (pattern && schema == nullptr) {
    return fields.fail(pattern_field,
                       fmt::format("{} needs a JSON schema: no other form has white space between "
                                   "tokens of JSON",
                                   pattern_field));
  }
  if (pattern && spaced) {
    return fields.fail(pattern_field, fmt::format("{} and disable_any_whitespace exclude each "
                                                  "other: both say what white space the JSON has",
                                                  pattern_field));
  }
  if (schema != nullptr) {
    schema->whitespace = pattern ? JsonWhitespace{*pattern, *pattern} : kSpacedSeparators;
    // With its length, no pattern can look like another part of the key.
    format->key += pattern ? fmt::format(" white space {}:{}", pattern->size(), *pattern)
                           : " spaced separators";
  }
}

// Reads vLLM's structured_outputs: {"json": ...}, {"regex": ...} and so on.
Format read_structured_outputs(FieldReader& fields) {
  const json::object* object = fields.object("structured_outputs");
  if (object == nullptr) {
    return std::nullopt;
  }
  FieldReader reader(*object, kStructuredOutputsTable, "structured_outputs.");
  std::vector<Format> found;
  if (reader.refused("structural_tag") != nullptr) {
    reader.fail("structural_tag",
                "structured_outputs.structural_tag is not supported: use json, regex, choice or "
                "grammar");
  }
  if (const json::value* schema = reader.find("json")) {
    found.push_back(read_schema(*schema, reader, "json"));
  }
  if (reader.boolean("json_object").value_or(false)) {
    found.emplace_back(any_json_object("json_object"));
  }
  if (const json::value* pattern = reader.find("regex")) {
    found.push_back(read_regex(*pattern, reader, "regex"));
  }
  if (const json::value* choices = reader.find("choice")) {
    found.push_back(read_choices(*choices, reader, "choice"));
  }
  if (const json::value* grammar = reader.find("grammar")) {
    found.push_back(read_gbnf(*grammar, reader, "grammar"));
  }
  Format format = found.empty() ? std::nullopt : std::move(found[0]);
  read_whitespace(reader, "whitespace_pattern",
                  reader.boolean("disable_any_whitespace").value_or(false), format);
  fields.adopt(reader);
  if (found.size() > 1) {
    fields.fail("structured_outputs",
                "structured_outputs must have one of json, json_object, regex, choice and grammar, "
                "not several");
  }
  if (!format || fields.failed()) {
    return std::nullopt;
  }
  format->field = "structured_outputs." + format->field;
  return format;
}

}  // namespace

AnswerFormat json_format(const json::value& schema, std::string_view field) {
  return {{JsonSchema{.schema = schema}}, "json " + json::serialize(schema), std::string(field)};
}

AnswerFormat any_json_object(std::string_view field) {
  return {{JsonSchema{.schema = json::object{{"type", "object"}}, .open_properties = true}},
          "json_object",
          std::string(field)};
}

Format read_format(FieldReader& fields) {
  std::vector<AnswerFormat> found;
  const auto add = [&](Format format) {
    if (format) {
      found.push_back(*std::move(format));
    }
  };
  add(read_response_format(fields));
  add(read_structured_outputs(fields));
  using Read = Format (*)(const json::value&, FieldReader&, std::string_view);
  constexpr std::pair<std::string_view, Read> kPlain[] = {
      {"guided_json", read_schema},  {"json_schema", read_schema},
      {"guided_regex", read_regex},  {"guided_choice", read_choices},
      {"guided_grammar", read_gbnf}, {"grammar", read_own_grammar}};
  for (const auto& [name, read] : kPlain) {
    if (const json::value* value = fields.find(name)) {
      add(read(*value, fields, name));
    }
  }
  if (found.size() > 1) {
    fields.fail(found[1].field, fmt::format("{} and {} exclude each other: both say what form the "
                                            "answer has",
                                            found[0].field, found[1].field));
  }
  Format format = found.empty() ? std::nullopt : Format(std::move(found[0]));
  read_whitespace(fields, "guided_whitespace_pattern", false, format);
  return fields.failed() ? std::nullopt : std::move(format);
}

}  // namespace protean
