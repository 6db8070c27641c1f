#pragma once

#include <array>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

inline constexpr std::string_view kSchemaSchema = R"({"type":["object","boolean","string"]})";
inline constexpr std::array kJsonSchemaTable{
    string_field("name", "A label, which changes nothing.", R"({"minLength":1,"maxLength":64})"),
    required(any_field("schema", kSchemaSchema, "The JSON schema, or text that holds it.")),
    boolean_field("strict", "Changes nothing: answers always match."),
    string_field("description", "A label, which changes nothing."),
};
inline constexpr std::array kResponseFormatTable{
    required(string_field("type", "What the answer is.",
                          R"({"enum":["text","json_object","json_schema"]})")),
    object_field("json_schema", "For type json_schema.", kJsonSchemaTable),
    any_field("schema", kSchemaSchema, "For type json_object: the JSON schema."),
};
inline constexpr std::array kStructuredOutputsTable{
    any_field("json", kSchemaSchema, "The answer is JSON of this schema."),
    boolean_field("json_object", "The answer is a JSON object."),
    any_field("regex", R"({"type":"string","minLength":1})", "The answer matches this pattern."),
    any_field("choice",
              R"({"type":"array","minItems":1,"maxItems":1024,"items":{"type":"string",)"
              R"("minLength":1}})",
              "The answer is one of these texts."),
    any_field("grammar", R"({"type":"string","minLength":1})",
              "The answer is the rule root of this grammar in GBNF."),
    string_field("whitespace_pattern", "A pattern of the white space between tokens of JSON."),
    boolean_field("disable_any_whitespace", "Separates tokens of JSON by single spaces."),
};
// The table of read_format().
inline constexpr std::array kFormatTable{
    object_field("response_format", "The form that the answer has.", kResponseFormatTable),
    object_field("structured_outputs", "The form that the answer has, as vLLM writes it.",
                 kStructuredOutputsTable),
    any_field("guided_json", kSchemaSchema, "The answer is JSON of this schema (older vLLM)."),
    any_field("json_schema", kSchemaSchema, "The answer is JSON of this schema (llama-server)."),
    any_field("guided_regex", R"({"type":"string","minLength":1})",
              "The answer matches this pattern (older vLLM)."),
    any_field("guided_choice",
              R"({"type":"array","minItems":1,"maxItems":1024,"items":{"type":"string",)"
              R"("minLength":1}})",
              "The answer is one of these texts (older vLLM)."),
    any_field("guided_grammar", R"({"type":"string","minLength":1})",
              "The answer is the rule root of this grammar in GBNF (older vLLM)."),
    any_field("grammar", R"({"type":"string"})",
              "The answer is the rule root of this grammar in GBNF (llama-server)."),
    string_field("guided_whitespace_pattern",
                 "A pattern of the white space between tokens of JSON (older vLLM)."),
};

// Reads the form that the answer's text must have, from response_format, structured_outputs, vLLM's
// older guided_* or llama-server's json_schema and grammar. A body may have one of them.
std::optional<AnswerFormat> read_format(FieldReader& fields);

// Return a JSON schema as a format. `field` is the field of the body that asked for it.
AnswerFormat json_format(const boost::json::value& schema, std::string_view field);
AnswerFormat any_json_object(std::string_view field);

}  // namespace protean
