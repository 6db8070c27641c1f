#include "server/openai/openai_call.h"

#include <fmt/format.h>

#include <array>
#include <boost/json/value.hpp>

#include "server/call/answer_format.h"
#include "server/call/sampling_fields.h"
#include "server/call/tool_fields.h"
#include "server/openai/chat_input.h"
#include "server/openai/unsupported_fields.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxSaltBytes = 1024;

constexpr std::array kCommonTable = joined(
    kSamplingTable, kTokenTable, kStopTable, kStreamTable, kReportTable, kUrgencyTable,
    kFormatTable, kPromptTable,
    std::array{
        string_field("model", "The model that answers; the first one of the server by default."),
        string_field("user", "A label, which changes nothing."),
        string_field("cache_salt", "Shares the prefix cache only with requests of the same salt.",
                     R"({"minLength":1})"),
        integer_field("n", 1, 128, "How many answers each prompt gets."),
        integer_field("best_of", 1, kNoLimit, "Must be 1 or n: there is no choice among answers."),
        any_field("max_tokens", R"({"type":"integer","minimum":0})",
                  "The most tokens of an answer; 0 only if a completion asks about its prompt."),
        any_field("max_completion_tokens", R"({"type":"integer","minimum":0})",
                  "The newer name of max_tokens.")});

constexpr std::array kChatTable =
    joined(kChatInputTable, kToolsTable, kChatReportTable, kCommonTable,
           std::array{array_field("modalities", "Must be [\"text\"].", R"({"const":["text"]})")});

constexpr std::array kCompletionTable =
    joined(std::array{required(any_field("prompt", kTextsOrTokensSchema,
                                         "Text, token ids, or a list of these: a prompt each.")),
                      boolean_field("echo", "Begins the answer with the prompt."),
                      string_field("suffix", "The answer goes between the prompt and this text.")},
           kCompletionReportTable, kCommonTable);

void read_salt(FieldReader& fields, GenerationCall& call) {
  if (const auto salt = fields.string("cache_salt")) {
    if (salt->empty()) {
      fields.fail("cache_salt", "cache_salt must not be empty: leave it out to share the cache");
    }
    if (salt->size() > kMaxSaltBytes) {
      fields.fail("cache_salt", fmt::format("cache_salt has {} bytes, at most {} are allowed",
                                            salt->size(), kMaxSaltBytes));
    }
    call.cache_salt = *salt;
  }
}

void read_counts(FieldReader& fields, GenerationCall& call) {
  call.n = fields.integer("n").value_or(1);
  const auto best_of = fields.integer("best_of");
  if (best_of && *best_of != 1 && *best_of != call.n) {
    fields.fail("best_of",
                "best_of is not supported: choosing among several answers is not "
                "implemented, ask for all of them with n");
  }
  // A completion may ask about the prompt alone.
  const bool prompt_told = call.prompt.echo || call.report.prompt_logprobs;
  const std::int64_t least = prompt_told && !call.chat() ? 0 : 1;
  const auto max_tokens = fields.integer_within("max_tokens", least, kNoLimit);
  const auto newer_name = fields.integer_within("max_completion_tokens", least, kNoLimit);
  call.max_tokens = newer_name ? newer_name : max_tokens;
  if (call.max_tokens && call.stop.min_tokens > *call.max_tokens) {
    fields.fail("min_tokens", fmt::format("min_tokens is {}, more than max_tokens, which is {}",
                                          call.stop.min_tokens, *call.max_tokens));
  }
}

// Refuses fields that exclude each other.
void refuse_conflicts(FieldReader& fields, const GenerationCall& call) {
  if (call.report.prompt_logprobs && call.stream.enabled) {
    fields.fail("prompt_logprobs", "prompt_logprobs is not available when stream is true");
  }
  if (fields.failed() || !(call.format || constrains(call.tools))) {
    return;
  }
  // Together with a grammar, these fields might allow no token at all.
  if (call.stop.min_tokens > 0) {
    fields.fail("min_tokens", "min_tokens is not supported together with structured output");
  }
  if (!call.tokens.allowed.empty()) {
    fields.fail("allowed_token_ids",
                "allowed_token_ids is not supported together with structured output");
  }
  if (!call.tokens.bad_words.empty()) {
    fields.fail("bad_words", "bad_words is not supported together with structured output");
  }
  if (call.format && call.tools.choice == ToolChoice::kRequired) {
    fields.fail(call.format->field,
                fmt::format("{} excludes tool_choice \"required\" and named functions: both say "
                            "what form the answer has",
                            call.format->field));
  }
}

// Reads the prompts of a completion, or a prompt and the suffix that comes after the answer.
void read_input(FieldReader& fields, GenerationCall& call) {
  CompletionInput input = read_completion_input(fields, "prompt");
  std::string suffix = fields.string("suffix").value_or("");
  if (suffix.empty()) {
    call.input = std::move(input);
    return;
  }
  const std::string* prompt =
      input.prompts.size() == 1 ? std::get_if<std::string>(&input.prompts[0]) : nullptr;
  if (prompt == nullptr) {
    return fields.fail("prompt", "prompt must be one text if there is a suffix");
  }
  if (call.prompt.echo) {
    fields.fail("echo", "echo and suffix exclude each other: the answer is between two texts");
  }
  call.input = InfillInput{.prefix = *prompt, .suffix = std::move(suffix), .field = "suffix"};
  call.names.input = "prompt";
}

// Reads the fields that both kinds of completion have.
void read_common(FieldReader& fields, GenerationCall& call) {
  call.model = fields.string("model").value_or("");
  call.sampling = read_sampling(fields);
  call.tokens = read_token_rules(fields);
  call.stop = read_stop(fields);
  call.stream = read_stream(fields);
  call.report = read_report(fields, call.chat());
  call.urgency = read_urgency(fields);
  call.format = read_format(fields);
  call.prompt = read_prompt_fields(fields);
  call.prompt.echo = !call.chat() && fields.boolean("echo").value_or(false);
  fields.string("user");
  read_salt(fields, call);
  read_counts(fields, call);
  refuse_conflicts(fields, call);
  refuse_unsupported(fields, call.chat());
}

Checked<GenerationCall> parse_call(json::value body, bool chat) {
  json::object* object = body.if_object();
  if (object == nullptr) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  FieldReader fields(*object, chat ? chat_fields() : completion_fields());
  GenerationCall call;
  if (chat) {
    call.input = ChatInput{};
    call.tools = read_tools(fields);
    read_common(fields, call);
    call.input = read_chat_input(fields, *object);
  } else {
    call.input = CompletionInput{};
    read_common(fields, call);
    read_input(fields, call);
  }
  if (fields.failed()) {
    return *fields.error();
  }
  return call;
}

}  // namespace

Checked<GenerationCall> parse_chat_call(json::value body) {
  return parse_call(std::move(body), true);
}

Checked<GenerationCall> parse_completion_call(json::value body) {
  return parse_call(std::move(body), false);
}

Fields chat_fields() {
  return kChatTable;
}

Fields completion_fields() {
  return kCompletionTable;
}

}  // namespace protean
