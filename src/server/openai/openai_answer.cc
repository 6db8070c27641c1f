#include "server/openai/openai_answer.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "server/answer/token_report.h"
#include "server/openai/openai_call.h"

namespace protean {
namespace {

std::string head_json(const AnswerIdentity& identity, std::string_view object) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{})",
                     json_text(identity.id), object, identity.created_s, json_text(identity.model),
                     json_text(identity.fingerprint));
}

std::string end_fields(const ChoiceEnd& end) {
  std::string reason = "null";
  if (const std::string* text = std::get_if<std::string>(&end.stop_reason)) {
    reason = json_text(*text);
  } else if (const TokenId* token = std::get_if<TokenId>(&end.stop_reason)) {
    reason = fmt::format("{}", *token);
  }
  return fmt::format(R"("finish_reason":"{}","stop_reason":{})", to_string(end.reason), reason);
}

constexpr std::string_view kNotEnded = R"("finish_reason":null)";

std::string call_fields(const AnswerCall& call) {
  return fmt::format(R"("id":{},"type":"function","function":{{"name":{},"arguments":{}}})",
                     json_text(call.id), json_text(call.name), json_text(call.arguments));
}

// Returns a delta's fields for one piece. SDKs join entries by index, so a call is one entry.
std::string delta_fields(const AnswerPiece& piece) {
  std::string content;
  std::vector<std::pair<int, AnswerCall>> calls;
  for (const ToolPiece& part : piece.parts) {
    if (const ContentPiece* text = std::get_if<ContentPiece>(&part)) {
      content += text->text;
    } else if (const CallBegin* begin = std::get_if<CallBegin>(&part)) {
      calls.push_back({begin->index, {.id = begin->id, .name = begin->name, .arguments = {}}});
    } else if (const ArgumentsPiece* arguments = std::get_if<ArgumentsPiece>(&part)) {
      if (calls.empty() || calls.back().first != arguments->index) {
        calls.push_back({arguments->index, {}});
      }
      calls.back().second.arguments += arguments->text;
    }
  }
  if (calls.empty()) {
    return fmt::format(R"("content":{})", json_text(content));
  }
  std::string fields = content.empty() ? "" : fmt::format(R"("content":{},)", json_text(content));
  fields += R"("tool_calls":[)";
  for (const auto& [index, call] : calls) {
    fields += fmt::format(R"({}{{"index":{},)", fields.back() == '[' ? "" : ",", index);
    fields += call.id.empty()
                  ? fmt::format(R"("function":{{"arguments":{}}})", json_text(call.arguments))
                  : call_fields(call);
    fields += "}";
  }
  return fields + "]";
}

std::string message_json(const SortedAnswer& choice) {
  const bool silent = choice.text.empty() && !choice.calls.empty();
  std::string json = fmt::format(R"({{"role":"assistant","content":{},"refusal":null)",
                                 silent ? "null" : json_text(choice.text));
  for (std::size_t i = 0; i < choice.calls.size(); ++i) {
    json.append(i == 0 ? R"(,"tool_calls":[{)" : ",{")
        .append(call_fields(choice.calls[i]))
        .append("}");
  }
  return json + (choice.calls.empty() ? "}" : "]}");
}

struct OpenAiOptions {
  bool chat = false;
  int choices = 1;
  bool echo = false;
  StreamFields stream;
  ReportFields report;
};

// Formats chunks by hand, because there is one per token and most of it never changes.
class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(const AnswerIdentity& identity, const OpenAiOptions& options,
               const Tokenizer& tokenizer)
      : identity_(identity),
        options_(options),
        tokens_(tokenizer, options.report.tokens_as_ids),
        // The text of a SentencePiece tokenizer does not show the space it begins with.
        offsets_(static_cast<std::size_t>(options.choices),
                 options.echo && tokenizer.strips_leading_space() ? -1 : 0),
        head_("data: " +
              head_json(identity, options.chat ? "chat.completion.chunk" : "text_completion") +
              R"(,"choices":[)") {}

  std::string begin(const AnswerUsage& so_far) override {
    std::string events;
    for (int i = 0; options_.chat && i < options_.choices; ++i) {
      events += chunk(i, R"("delta":{"role":"assistant","content":""},"logprobs":null)", kNotEnded,
                      so_far);
    }
    return events;
  }
  std::string prompt(int choice, const AnswerPrompt& prompt, const AnswerUsage& so_far) override {
    std::string fields =
        options_.chat ? R"("delta":{},"logprobs":null)"
                      : fmt::format(R"("text":{},"logprobs":{})", json_text(prompt.echo),
                                    options_.echo ? logprobs(choice, prompt.tokens) : "null");
    if (options_.report.token_ids) {
      fields.append(R"(,"prompt_token_ids":)").append(json_ids(prompt.tokens));
    }
    return chunk(choice, fields, kNotEnded, so_far);
  }
  std::string piece(int choice, const AnswerPiece& piece, const AnswerUsage& so_far) override {
    std::string fields = options_.chat ? fmt::format(R"("delta":{{{}}})", delta_fields(piece))
                                       : fmt::format(R"("text":{})", json_text(content_of(piece)));
    fields.append(R"(,"logprobs":)").append(logprobs(choice, piece.tokens));
    if (options_.report.token_ids) {
      fields.append(R"(,"token_ids":)").append(json_ids(piece.tokens));
    }
    return chunk(choice, fields, kNotEnded, so_far);
  }
  std::string end_choice(int choice, const ChoiceEnd& end, const AnswerUsage& so_far) override {
    return chunk(choice,
                 options_.chat ? R"("delta":{},"logprobs":null)" : R"("text":"","logprobs":null)",
                 end_fields(end), so_far);
  }
  std::string end(const AnswerUsage& usage) override {
    std::string events = options_.stream.usage ? event("", usage_json(usage)) : std::string();
    return events.append(kSseDone);
  }
  std::string error(const ApiError& error) override {
    return sse_event(error_json(error, ErrorStyle::kOpenAi));
  }
  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    std::string json = head_json(identity_, options_.chat ? "chat.completion" : "text_completion") +
                       R"(,"choices":[)";
    for (std::size_t i = 0; i < choices.size(); ++i) {
      json.append(i == 0 ? "" : ",").append(choice_json(static_cast<int>(i), choices[i]));
    }
    json.append(R"(],"usage":)").append(usage_json(usage));
    if (options_.chat) {  // all choices have one prompt
      json += prompt_fields(choices[0].prompt);
    }
    return json + "}";
  }

 private:
  static std::string content_of(const AnswerPiece& piece) {
    std::string text;
    for (const ToolPiece& part : piece.parts) {
      const ContentPiece* content = std::get_if<ContentPiece>(&part);
      text += content == nullptr ? "" : content->text;
    }
    return text;
  }
  // Returns the logprobs of tokens that follow those written before for the choice.
  std::string logprobs(int choice, std::span<const AnswerToken> tokens) {
    if (!options_.report.logprobs || tokens.empty()) {
      return "null";
    }
    const int top = options_.report.top_logprobs;
    return options_.chat ? tokens_.chat_logprobs(tokens, top)
                         : tokens_.completion_logprobs(
                               tokens, top, offsets_.at(static_cast<std::size_t>(choice)));
  }
  std::string prompt_fields(const AnswerPrompt& prompt) const {
    std::string fields;
    if (options_.report.prompt_logprobs) {
      fields.append(R"(,"prompt_logprobs":)")
          .append(tokens_.prompt_logprobs(prompt.tokens, *options_.report.prompt_logprobs));
    }
    if (options_.report.token_ids) {
      fields.append(R"(,"prompt_token_ids":)").append(json_ids(prompt.tokens));
    }
    return fields;
  }
  std::string choice_json(int index, const AnswerChoice& choice) {
    const SortedAnswer answer = sorted(choice);
    std::vector<AnswerToken> told =
        options_.echo ? choice.prompt.tokens : std::vector<AnswerToken>();
    told.insert(told.end(), answer.tokens.begin(), answer.tokens.end());
    std::string json = fmt::format(R"({{"index":{},)", index);
    json += options_.chat
                ? fmt::format(R"("message":{})", message_json(answer))
                : fmt::format(R"("text":{})", json_text(choice.prompt.echo + answer.text));
    json += fmt::format(R"(,"logprobs":{},{})", logprobs(index, told), end_fields(choice.end));
    if (options_.report.token_ids) {
      json.append(R"(,"token_ids":)").append(json_ids(answer.tokens));
    }
    return json + (options_.chat ? std::string() : prompt_fields(choice.prompt)) + "}";
  }
  std::string chunk(int choice, std::string_view fields, std::string_view end,
                    const AnswerUsage& usage) const {
    const std::string one = fmt::format(R"({{"index":{},{},{}}})", choice, fields, end);
    if (!options_.stream.usage) {
      return event(one, "");
    }
    if (!options_.stream.continuous_usage) {
      return event(one, "null");
    }
    AnswerUsage so_far = usage;
    so_far.cached_tokens.reset();
    return event(one, usage_json(so_far));
  }
  std::string event(std::string_view choices, std::string_view usage) const {
    std::string event;
    event.reserve(head_.size() + choices.size() + usage.size() + 16);
    event.append(head_).append(choices).append("]");
    if (!usage.empty()) {
      event.append(R"(,"usage":)").append(usage);
    }
    return event.append("}\n\n");
  }

  const AnswerIdentity identity_;
  const OpenAiOptions options_;
  const TokenReport tokens_;
  std::vector<std::int64_t> offsets_;  // characters before each choice's next token
  const std::string head_;             // the beginning of an event, up to its choices
};

Checked<DialectCall> with_writer(Checked<GenerationCall> parsed, std::string_view id_prefix) {
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  GenerationCall& call = std::get<GenerationCall>(parsed);
  const OpenAiOptions options{.chat = call.chat(),
                              .choices = static_cast<int>(call.choices()),
                              .echo = call.prompt.echo,
                              .stream = call.stream,
                              .report = call.report};
  const auto make = [options](const AnswerIdentity& identity, const Tokenizer& tokenizer) {
    return std::make_unique<OpenAiWriter>(identity, options, tokenizer);
  };
  return DialectCall{std::move(call), id_prefix, make};
}

}  // namespace

Checked<DialectCall> read_chat_call(boost::json::value body) {
  return with_writer(parse_chat_call(std::move(body)), "chatcmpl-");
}

Checked<DialectCall> read_completion_call(boost::json::value body) {
  return with_writer(parse_completion_call(std::move(body)), "cmpl-");
}

std::string usage_json(const AnswerUsage& usage) {
  std::string json = fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{})",
                                 usage.prompt_tokens, usage.output_tokens,
                                 usage.prompt_tokens + usage.output_tokens);
  if (usage.cached_tokens) {
    json += fmt::format(R"(,"prompt_tokens_details":{{"cached_tokens":{}}})", *usage.cached_tokens);
  }
  return json + by_precision(usage) + "}";
}

std::string sse_event(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace protean
