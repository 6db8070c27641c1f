#include "server/anthropic/messages_call.h"

#include <fmt/format.h>

#include <array>

#include "server/answer/prompts.h"
#include "server/anthropic/messages_answer.h"
#include "server/anthropic/messages_input.h"
#include "server/call/answer_format.h"
#include "server/call/flat_tools.h"
#include "server/call/refused_fields.h"
#include "server/call/sampling_fields.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxStopSequences = 16;

constexpr std::array kMessagesToolTable =
    flat_tool_table(string_field("type", "Only custom tools are supported, which you run.",
                                 R"({"const":"custom"})"),
                    required(object_field("input_schema", "The JSON schema of the arguments.")));

constexpr FlatToolStyle kMessagesToolStyle{.place = "tools.{}",
                                           .type = "custom",
                                           .type_is_implied = true,
                                           .schema = "input_schema",
                                           .schema_is_required = true,
                                           .table = kMessagesToolTable};

constexpr std::array kThinkingTable{
    required(string_field("type", "Thoughts are not told apart.", R"({"const":"disabled"})"))};
constexpr std::array kMessagesToolChoiceTable{
    required(string_field("type", "Whether the model calls tools.",
                          R"({"enum":["auto","any","tool","none"]})")),
    string_field("name", "Of type tool: the only one."),
    boolean_field("disable_parallel_tool_use", "Allows at most one call."),
};
constexpr std::array kMessagesFormatTable{
    required(string_field("type", "The only form.", R"({"const":"json_schema"})")),
    required(object_field("schema", "The answer is JSON of this schema.")),
};
constexpr std::array kOutputConfigTable{
    string_field("effort", "A variable for the chat template."),
    object_field("format", "The form that the answer has.", kMessagesFormatTable),
};
constexpr std::array kMessagesCountTable = joined(
    kMessagesInputTable, kSamplingTable, kUrgencyTable,
    std::array{
        string_field("model", "The model that answers; the first one of the server by default."),
        boolean_field("stream", "Sends the answer as server-sent events while it is computed."),
        array_field("stop_sequences", "Texts that end the answer.",
                    R"({"maxItems":16,"items":{"type":"string","minLength":1}})"),
        integer_field("max_tokens", 1, kNoLimit, "The most tokens of the answer."),
        object_field("metadata", "Labels, which change nothing."),
        string_field("speed", "There is only one.", R"({"const":"standard"})"),
        object_field("thinking", "Thoughts are not told apart.", kThinkingTable),
        array_field("tools", "Tools that the model may call.", R"({"maxItems":128})",
                    kMessagesToolTable),
        object_field("tool_choice", "Whether the model calls tools, and which.",
                     kMessagesToolChoiceTable),
        object_field("output_config", "The form that the answer has.", kOutputConfigTable)});

// An answer needs max_tokens, a count of tokens does not.
constexpr auto with_required_max_tokens(auto table) {
  for (Field& field : table) {
    field.required = field.required || field.name == "max_tokens";
  }
  return table;
}
constexpr std::array kMessagesTable = with_required_max_tokens(kMessagesCountTable);

constexpr std::array kMessagesRefused{
    RefusedField{"container", "there are no containers here"},
    RefusedField{"mcp_servers", "this server connects to no others, run the tools yourself"},
    RefusedField{"context_management", "nothing is cleared from the context here"},
    RefusedField{"diagnostics", "the cache has no diagnostics"},
    RefusedField{"inference_geo", "requests cannot choose where the server runs"},
    RefusedField{"output_format", "use output_config.format"},
};

void refuse_messages_fields(FieldReader& fields) {
  refuse_fields(fields, kMessagesRefused);
  if (const auto speed = fields.string("speed"); speed && *speed != "standard") {
    fields.fail("speed", "speed must be \"standard\": there is only one");
  }
  if (const json::object* thinking = fields.object("thinking")) {
    FieldReader reader(*thinking, kThinkingTable, "thinking.");
    if (const std::string type = reader.required_string("type"); type != "disabled") {
      reader.fail("type", fmt::format("thinking.type \"{}\" is not supported: only \"disabled\" is",
                                      excerpt(type)));
    }
    fields.adopt(reader);
  }
}

void read_stop_sequences(FieldReader& fields, StopFields& stop) {
  const json::array* list = fields.array("stop_sequences");
  if (list == nullptr) {
    return;
  }
  if (list->size() > kMaxStopSequences) {
    return fields.fail("stop_sequences",
                       fmt::format("stop_sequences has {} entries, at most {} are allowed",
                                   list->size(), kMaxStopSequences));
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("stop_sequences.{}", i);
    const json::string* text = (*list)[i].if_string();
    if (text == nullptr) {
      return fields.expect(where, "a string", (*list)[i]);
    }
    if (text->empty() || text->size() > kMaxStopBytes) {
      return fields.fail(where, fmt::format("{} has {} bytes, but must have 1 to {}", where,
                                            text->size(), kMaxStopBytes));
    }
    stop.strings.emplace_back(std::string_view(*text));
  }
}

void read_messages_tool_choice(FieldReader& fields, ToolFields& read) {
  const json::object* choice = fields.object("tool_choice");
  if (choice == nullptr) {
    return;
  }
  FieldReader reader(*choice, kMessagesToolChoiceTable, "tool_choice.");
  const std::string type = reader.required_string("type");
  read.parallel = !reader.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    read.choice = ToolChoice::kNone;
  } else if (type == "any") {
    read.choice = ToolChoice::kRequired;
  } else if (type == "tool") {
    read_chosen_tool(reader, read);
  } else if (type != "auto") {
    reader.fail("type", fmt::format("tool_choice.type must be \"auto\", \"any\", \"tool\" or "
                                    "\"none\", not \"{}\"",
                                    excerpt(type)));
  }
  if (read.choice == ToolChoice::kRequired && read.tools.empty()) {
    reader.fail("type", fmt::format("tool_choice.type is \"{}\", but there are no tools", type));
  }
  fields.adopt(reader);
}

void read_output_config(FieldReader& fields, GenerationCall& call, ChatInput& input) {
  const json::object* config = fields.object("output_config");
  if (config == nullptr) {
    return;
  }
  FieldReader reader(*config, kOutputConfigTable, "output_config.");
  if (const auto effort = reader.string("effort")) {
    input.template_kwargs["reasoning_effort"] = *effort;
  }
  if (const json::object* format = reader.object("format")) {
    FieldReader inner(*format, kMessagesFormatTable, "output_config.format.");
    const std::string type = inner.required_string("type");
    const json::object* schema = inner.object("schema");
    if (type != "json_schema") {
      inner.fail("type",
                 fmt::format("output_config.format.type must be \"json_schema\", not \"{}\"",
                             excerpt(type)));
    } else if (schema == nullptr) {
      inner.fail("schema", "output_config.format.schema is required: a JSON schema");
    } else {
      call.format = json_format(*schema, "output_config.format.schema");
    }
    reader.adopt(inner);
  }
  fields.adopt(reader);
}

// Reads the messages. If the last one is the assistant's, the answer continues it.
void read_messages(FieldReader& fields, ChatInput& input) {
  input.messages = read_messages_input(fields);
  if (fields.failed() || input.messages.back().at("role") != "assistant") {
    return;
  }
  const json::object& last = input.messages.back().get_object();
  if (last.contains("tool_calls")) {
    return fields.fail("messages",
                       "messages must not end with a tool_use block: what comes next is its "
                       "tool_result, in a message of the user");
  }
  if (!last.at("content").get_string().empty()) {
    input.continue_final_message = true;
    input.add_generation_prompt = false;
  } else if (input.messages.size() > 1) {
    input.messages.pop_back();
  } else {
    fields.fail("messages", "messages holds nothing to answer");
  }
}

Checked<GenerationCall> read_call(const json::value& body, bool generates) {
  if (!body.is_object()) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  FieldReader fields(body.get_object(), kMessagesTable);
  GenerationCall call;
  ChatInput input;
  call.model = fields.string("model").value_or("");
  call.sampling = read_sampling(fields);
  call.urgency = read_urgency(fields);
  call.stream.enabled = fields.boolean("stream").value_or(false);
  read_stop_sequences(fields, call.stop);
  call.max_tokens = fields.integer("max_tokens");
  call.cut_at_context = true;
  if (generates && !call.max_tokens) {
    fields.fail("max_tokens", "max_tokens is required: an integer of at least 1");
  }
  fields.object("metadata");
  refuse_messages_fields(fields);
  read_flat_tools(fields, kMessagesToolStyle, call.tools);
  read_messages_tool_choice(fields, call.tools);
  read_output_config(fields, call, input);
  if (call.format && call.tools.choice == ToolChoice::kRequired) {
    fields.fail("tool_choice",
                "tool_choice and output_config.format exclude each other: both say what form the "
                "answer has");
  }
  read_messages(fields, input);
  if (fields.failed()) {
    return *fields.error();
  }
  call.input = std::move(input);
  return call;
}

}  // namespace

Checked<DialectCall> read_messages_call(json::value body) {
  Checked<GenerationCall> read = read_call(body, true);
  if (ApiError* error = std::get_if<ApiError>(&read)) {
    return std::move(*error);
  }
  GenerationCall& call = std::get<GenerationCall>(read);
  const auto make = [most = *call.max_tokens](const AnswerIdentity& identity, const Tokenizer&) {
    return make_messages_writer(identity, most);
  };
  return DialectCall{std::move(call), kMessageIdPrefix, make};
}

Checked<TextCall> read_messages_count(json::value body) {
  Checked<GenerationCall> read = read_call(body, false);
  if (ApiError* error = std::get_if<ApiError>(&read)) {
    return std::move(*error);
  }
  auto call = std::make_shared<const GenerationCall>(std::get<GenerationCall>(std::move(read)));
  const auto run = [call](const ServedModel& model) -> Checked<std::string> {
    const Checked<std::vector<TokenId>> tokens = chat_tokens(*call, model);
    if (const ApiError* error = std::get_if<ApiError>(&tokens)) {
      return *error;
    }
    return fmt::format(R"({{"input_tokens":{}}})", std::get<std::vector<TokenId>>(tokens).size());
  };
  return TextCall{.model = call->model, .run = run};
}

Fields messages_fields() {
  return kMessagesTable;
}

Fields messages_count_fields() {
  return kMessagesCountTable;
}

}  // namespace protean
