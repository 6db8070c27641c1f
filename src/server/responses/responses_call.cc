#include "server/responses/responses_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>

#include "server/call/answer_format.h"
#include "server/call/flat_tools.h"
#include "server/call/refused_fields.h"
#include "server/call/sampling_fields.h"
#include "server/responses/responses_answer.h"
#include "server/responses/responses_input.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxMetadata = 16;
constexpr std::array kResponsesToolTable = flat_tool_table(
    required(string_field("type", "Only functions are supported.", R"({"const":"function"})")),
    object_field("parameters", "The JSON schema of the arguments."));
constexpr FlatToolStyle kResponsesToolStyle{
    .place = "tools[{}]", .type = "function", .schema = "parameters", .table = kResponsesToolTable};

constexpr std::array kResponsesStreamTable{
    boolean_field("include_obfuscation", "Must be false: events are not padded.")};
constexpr std::array kResponsesChosenTable{
    required(string_field("type", "Only functions are supported.", R"({"const":"function"})")),
    required(string_field("name", "The function to call."))};
constexpr std::array kResponsesFormatTable{
    required(string_field("type", "What the answer is.",
                          R"({"enum":["text","json_object","json_schema"]})")),
    string_field("name", "A label, required for type json_schema."),
    boolean_field("strict", "Changes nothing: answers always match."),
    object_field("schema", "For type json_schema: the schema."),
};
constexpr std::array kResponsesTextTable{
    object_field("format", "The form that the answer has.", kResponsesFormatTable),
    string_field("verbosity", "Must be medium.", R"({"const":"medium"})"),
};
constexpr std::array kResponsesReasoningTable{
    string_field("effort", "A variable for the chat template.")};
constexpr std::array kResponsesTable = joined(
    kResponsesInputTable, kSamplingTable, kUrgencyTable,
    std::array{
        string_field("model", "The model that answers; the first one of the server by default."),
        boolean_field("stream", "Sends the answer as server-sent events while it is computed."),
        object_field("stream_options", "How events are written.", kResponsesStreamTable),
        integer_field("max_output_tokens", 1, kNoLimit, "The most tokens of the answer."),
        boolean_field("store", "Changes nothing: no response is stored."),
        string_field("user", "A label, which changes nothing."),
        string_field("safety_identifier", "A label, which changes nothing."),
        string_field("prompt_cache_key", "A label, which changes nothing."),
        string_field("service_tier", "A label, which changes nothing."),
        object_field("metadata", "Labels, which the response repeats.", {},
                     R"({"maxProperties":16,"additionalProperties":{"type":["string","null"]}})"),
        string_field("truncation", "No part of the input is left out.", R"({"const":"disabled"})"),
        array_field("include", "message.output_text.logprobs adds log-probabilities.",
                    R"({"items":{"type":"string"}})"),
        integer_field("top_logprobs", 0, kMostTopLogprobs,
                      "How many alternatives are reported for each token."),
        array_field("tools", "Functions that the model may call.", R"({"maxItems":128})",
                    kResponsesToolTable),
        any_field("tool_choice",
                  R"({"anyOf":[{"enum":["none","auto","required"]},{"type":"object",)"
                  R"("required":["type","name"],"properties":{"type":{"const":"function"},)"
                  R"("name":{"type":"string"}}}]})",
                  "Whether the model calls functions, and which."),
        boolean_field("parallel_tool_calls", "Allows several calls; true by default."),
        object_field("text", "The form that the answer has.", kResponsesTextTable),
        object_field("reasoning", "Variables for the chat template.", kResponsesReasoningTable)});

constexpr std::array kResponsesRefused{
    RefusedField{"previous_response_id",
                 "no response is stored here, send the whole conversation as input"},
    RefusedField{"conversation", "no conversation is stored here, send all of it as input"},
    RefusedField{"background", "nothing is stored for later here, use stream", true},
    RefusedField{"prompt", "no prompts are stored here, send the text as instructions and input"},
    RefusedField{"context_management", "nothing is cleared from the context here"},
    RefusedField{"moderation", "there is no moderation here"},
};

// The values of `include`. All but the last belong to tools, inputs and items that do not occur
// here, so accepting them changes nothing.
constexpr std::array<std::string_view, 8> kIncludable{"file_search_call.results",
                                                      "web_search_call.results",
                                                      "web_search_call.action.sources",
                                                      "message.input_image.image_url",
                                                      "computer_call_output.output.image_url",
                                                      "code_interpreter_call.outputs",
                                                      "reasoning.encrypted_content",
                                                      "message.output_text.logprobs"};

void refuse_responses_fields(FieldReader& fields) {
  refuse_fields(fields, kResponsesRefused);
  if (const auto truncation = fields.string("truncation");
      truncation && *truncation != "disabled") {
    fields.fail("truncation", "truncation must be \"disabled\": no part of the input is left out");
  }
  if (const json::object* options = fields.object("stream_options")) {
    FieldReader reader(*options, kResponsesStreamTable, "stream_options.");
    if (reader.boolean("include_obfuscation").value_or(false)) {
      reader.fail("include_obfuscation", "stream_options.include_obfuscation is not supported");
    }
    fields.adopt(reader);
  }
}

void read_include(FieldReader& fields, ReportFields& report) {
  if (const json::array* include = fields.array("include")) {
    for (std::size_t i = 0; i < include->size(); ++i) {
      const json::string* name = (*include)[i].if_string();
      if (name == nullptr || std::find(kIncludable.begin(), kIncludable.end(),
                                       std::string_view(*name)) == kIncludable.end()) {
        return fields.fail(
            fmt::format("include[{}]", i),
            fmt::format("include[{}] is {}, which cannot be included", i,
                        name == nullptr ? describe((*include)[i]) : '"' + excerpt(*name) + '"'));
      }
      report.logprobs = report.logprobs || *name == kIncludable.back();
    }
  }
  if (const auto top = fields.integer("top_logprobs")) {
    report.top_logprobs = static_cast<int>(*top);
    report.logprobs = report.logprobs || *top > 0;
  }
}

void read_function_choice(const json::object& choice, FieldReader& fields, ToolFields& read) {
  FieldReader reader(choice, kResponsesChosenTable, "tool_choice.");
  if (const std::string type = reader.required_string("type"); type != "function") {
    reader.fail("type",
                fmt::format("tool_choice.type \"{}\" is not supported: only \"function\" is",
                            excerpt(type)));
  }
  read_chosen_tool(reader, read);
  fields.adopt(reader);
}

void read_responses_tool_choice(FieldReader& fields, ToolFields& read) {
  read.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  const json::value* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto") {
    return;
  }
  if (const json::object* object = choice->if_object()) {
    read_function_choice(*object, fields, read);
  } else if (*choice == "none") {
    read.choice = ToolChoice::kNone;
  } else if (*choice != "required") {
    fields.fail("tool_choice",
                "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                "\"name\": ...}");
  } else if (read.tools.empty()) {
    fields.fail("tool_choice", "tool_choice is \"required\", but there are no tools");
  } else {
    read.choice = ToolChoice::kRequired;
  }
}

std::optional<AnswerFormat> read_format(const json::object& format, FieldReader& text) {
  FieldReader reader(format, kResponsesFormatTable, "text.format.");
  std::optional<AnswerFormat> read;
  const std::string type = reader.required_string("type");
  if (type == "json_object") {
    read = any_json_object("text.format");
  } else if (type == "json_schema") {
    reader.required_string("name");
    reader.boolean("strict");
    if (const json::object* schema = reader.object("schema")) {
      read = json_format(*schema, "text.format.schema");
    } else {
      reader.fail("schema", "text.format.schema is required: a JSON schema");
    }
  } else if (type != "text") {
    reader.fail("type", "text.format.type must be \"text\", \"json_object\" or \"json_schema\"");
  }
  text.adopt(reader);
  return read;
}

void read_text(FieldReader& fields, GenerationCall& call) {
  if (const json::object* text = fields.object("text")) {
    FieldReader reader(*text, kResponsesTextTable, "text.");
    if (const json::object* format = reader.object("format")) {
      call.format = read_format(*format, reader);
    }
    if (const auto verbosity = reader.string("verbosity"); verbosity && *verbosity != "medium") {
      reader.fail("verbosity", "text.verbosity must be \"medium\": say it in the instructions");
    }
    fields.adopt(reader);
  }
  if (call.format && call.tools.choice == ToolChoice::kRequired) {
    fields.fail("text.format",
                "text.format excludes tool_choice \"required\" and named functions: both say what "
                "form the answer has");
  }
}

void read_reasoning(FieldReader& fields, ChatInput& input) {
  if (const json::object* reasoning = fields.object("reasoning")) {
    FieldReader reader(*reasoning, kResponsesReasoningTable, "reasoning.");
    if (const auto effort = reader.string("effort")) {
      input.template_kwargs["reasoning_effort"] = *effort;
    }
    fields.adopt(reader);
  }
}

void check_metadata(FieldReader& fields) {
  const json::object* metadata = fields.object("metadata");
  if (metadata == nullptr) {
    return;
  }
  if (metadata->size() > kMaxMetadata) {
    fields.fail("metadata", fmt::format("metadata has {} keys, at most {} are allowed",
                                        metadata->size(), kMaxMetadata));
  }
  for (const auto& [key, value] : *metadata) {
    if (!value.is_string() && !value.is_null()) {
      fields.expect(fmt::format("metadata.{}", std::string_view(key)), "a string", value);
    }
  }
}

// Returns the fields of the request that the response repeats, with defaults for those left out.
std::string echo_of(const json::object& body) {
  json::object echo{{"background", false},
                    {"instructions", nullptr},
                    {"max_output_tokens", nullptr},
                    {"max_tool_calls", nullptr},
                    {"metadata", json::object()},
                    {"parallel_tool_calls", true},
                    {"previous_response_id", nullptr},
                    {"prompt_cache_key", nullptr},
                    {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                    {"safety_identifier", nullptr},
                    {"temperature", nullptr},
                    {"text", {{"format", {{"type", "text"}}}}},
                    {"tool_choice", "auto"},
                    {"tools", json::array()},
                    {"top_logprobs", 0},
                    {"top_p", nullptr},
                    {"truncation", "disabled"},
                    {"user", nullptr}};
  for (auto& [key, value] : echo) {
    const json::value* given = body.if_contains(key);
    if (given != nullptr && !given->is_null()) {
      value = *given;
    }
  }
  if (json::object& text = echo["text"].get_object(); !text.contains("format")) {
    text["format"] = {{"type", "text"}};
  }
  echo["service_tier"] = "default";
  echo["store"] = false;  // even if true was asked
  std::string text = json::serialize(echo);
  return text.substr(1, text.size() - 2);
}

Checked<GenerationCall> read_call(const json::object& body) {
  FieldReader fields(body, kResponsesTable);
  GenerationCall call;
  ChatInput input;
  call.model = fields.string("model").value_or("");
  call.sampling = read_sampling(fields);
  call.urgency = read_urgency(fields);
  call.stream.enabled = fields.boolean("stream").value_or(false);
  call.max_tokens = fields.integer("max_output_tokens");
  call.names = {.input = "input", .max_tokens = "max_output_tokens"};
  fields.boolean("store");
  for (const char* label : {"user", "safety_identifier", "prompt_cache_key", "service_tier"}) {
    fields.string(label);
  }
  check_metadata(fields);
  refuse_responses_fields(fields);
  read_include(fields, call.report);
  read_flat_tools(fields, kResponsesToolStyle, call.tools);
  read_responses_tool_choice(fields, call.tools);
  read_text(fields, call);
  read_reasoning(fields, input);
  input.messages = read_responses_input(fields);
  if (fields.failed()) {
    return *fields.error();
  }
  call.input = std::move(input);
  return call;
}

}  // namespace

Checked<DialectCall> read_responses_call(json::value body) {
  if (!body.is_object()) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  Checked<GenerationCall> read = read_call(body.get_object());
  if (ApiError* error = std::get_if<ApiError>(&read)) {
    return std::move(*error);
  }
  GenerationCall& call = std::get<GenerationCall>(read);
  const ResponsesEcho echo{echo_of(body.get_object()), call.report.logprobs,
                           call.report.top_logprobs};
  const auto make = [echo](const AnswerIdentity& identity, const Tokenizer& tokenizer) {
    return make_responses_writer(identity, tokenizer, echo);
  };
  return DialectCall{std::move(call), "resp_", make};
}

Fields responses_fields() {
  return kResponsesTable;
}

}  // namespace protean
