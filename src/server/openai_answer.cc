#include "server/openai_answer.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string_view.hpp>
#include <utility>

namespace protean {
namespace {

std::string json_text(std::string_view text) {
  return boost::json::serialize(boost::json::string_view(text));
}

std::string head_json(const AnswerIdentity& identity, std::string_view object) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{})",
                     json_text(identity.id), object, identity.created_s, json_text(identity.model),
                     json_text(identity.fingerprint));
}

std::string end_json(const ChoiceEnd& end) {
  std::string reason = "null";
  if (const std::string* text = std::get_if<std::string>(&end.stop_reason)) {
    reason = json_text(*text);
  } else if (const TokenId* token = std::get_if<TokenId>(&end.stop_reason)) {
    reason = fmt::format("{}", *token);
  }
  return fmt::format(R"("logprobs":null,"finish_reason":"{}","stop_reason":{})",
                     to_string(end.reason), reason);
}

constexpr std::string_view kNotEnded = R"("logprobs":null,"finish_reason":null)";

std::string content_of(const AnswerPiece& piece) {
  std::string text;
  for (const ToolPiece& part : piece.parts) {
    if (const ContentPiece* content = std::get_if<ContentPiece>(&part)) {
      text += content->text;
    }
  }
  return text;
}

// Chunks are made by hand: there is one per token, and most of it never changes.
class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(const AnswerIdentity& identity, bool chat, int choices, StreamFields stream)
      : identity_(identity),
        chat_(chat),
        choices_(choices),
        stream_(stream),
        head_("data: " + head_json(identity, chat ? "chat.completion.chunk" : "text_completion") +
              R"(,"choices":[)") {}

  std::string begin(const AnswerUsage& so_far) override {
    std::string events;
    for (int i = 0; chat_ && i < choices_; ++i) {
      events +=
          chunk(fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},{}}})", i,
                            kNotEnded),
                so_far);
    }
    return events;
  }
  std::string piece(int choice, const AnswerPiece& piece, const AnswerUsage& so_far) override {
    const std::string text = json_text(content_of(piece));
    return chunk(chat_ ? fmt::format(R"({{"index":{},"delta":{{"content":{}}},{}}})", choice, text,
                                     kNotEnded)
                       : fmt::format(R"({{"index":{},"text":{},{}}})", choice, text, kNotEnded),
                 so_far);
  }
  std::string end_choice(int choice, const ChoiceEnd& end, const AnswerUsage& so_far) override {
    return chunk(fmt::format(R"({{"index":{},{},{}}})", choice,
                             chat_ ? R"("delta":{})" : R"("text":"")", end_json(end)),
                 so_far);
  }
  std::string end(const AnswerUsage& usage) override {
    std::string events = stream_.usage ? chunk_with("", usage_json(usage)) : std::string();
    return events.append(kSseDone);
  }
  std::string error(const ApiError& error) override {
    return sse_event(error_json(error, ErrorStyle::kOpenAi));
  }
  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    std::string json = head_json(identity_, chat_ ? "chat.completion" : "text_completion");
    json += R"(,"choices":[)";
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const std::string text = json_text(choices[i].text);
      json += fmt::format(R"({}{{"index":{},)", i == 0 ? "" : ",", i);
      json += chat_ ? fmt::format(R"("message":{{"role":"assistant","content":{}}},)", text)
                    : fmt::format(R"("text":{},)", text);
      json += end_json(choices[i].end) + "}";
    }
    return json + R"(],"usage":)" + usage_json(usage) + "}";
  }

 private:
  std::string chunk(std::string_view choices, AnswerUsage so_far) const {
    if (!stream_.usage) {
      return chunk_with(choices, "");
    }
    so_far.cached_tokens.reset();
    return chunk_with(choices, stream_.continuous_usage ? usage_json(so_far) : "null");
  }
  std::string chunk_with(std::string_view choices, std::string_view usage) const {
    std::string event;
    event.reserve(head_.size() + choices.size() + usage.size() + 16);
    event.append(head_).append(choices).append("]");
    if (!usage.empty()) {
      event.append(R"(,"usage":)").append(usage);
    }
    return event.append("}\n\n");
  }

  const AnswerIdentity identity_;
  const bool chat_;
  const int choices_;
  const StreamFields stream_;
  const std::string head_;  // of an event, up to where choices begin
};

Checked<DialectCall> with_writer(Checked<GenerationCall> parsed, std::string_view id_prefix) {
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  GenerationCall& call = std::get<GenerationCall>(parsed);
  const auto make = [chat = call.chat(), choices = static_cast<int>(call.choices()),
                     stream = call.stream](const AnswerIdentity& identity, const Tokenizer&) {
    return std::make_unique<OpenAiWriter>(identity, chat, choices, stream);
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
  return json + "}";
}

std::string sse_event(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace protean
