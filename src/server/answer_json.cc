#include "server/answer_json.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string_view.hpp>

namespace protean {
namespace {

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string_view(text));
}

std::string head_json(const AnswerIdentity& identity, std::string_view object) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{})",
                     quoted(identity.id), object, identity.created_s, quoted(identity.model),
                     quoted(identity.fingerprint));
}

std::string end_json(const ChoiceEnd& end) {
  std::string reason = "null";
  if (const std::string* text = std::get_if<std::string>(&end.stop_reason)) {
    reason = quoted(*text);
  } else if (const TokenId* token = std::get_if<TokenId>(&end.stop_reason)) {
    reason = fmt::format("{}", *token);
  }
  return fmt::format(R"("logprobs":null,"finish_reason":"{}","stop_reason":{})", end.finish_reason,
                     reason);
}

constexpr std::string_view kNotEnded = R"("logprobs":null,"finish_reason":null)";

}  // namespace

std::string usage_json(const AnswerUsage& usage) {
  std::string json = fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{})",
                                 usage.prompt_tokens, usage.output_tokens,
                                 usage.prompt_tokens + usage.output_tokens);
  if (usage.cached_tokens) {
    json += fmt::format(R"(,"prompt_tokens_details":{{"cached_tokens":{}}})", *usage.cached_tokens);
  }
  return json + "}";
}

std::string whole_answer_json(const AnswerIdentity& identity,
                              std::span<const FinishedChoice> choices, const AnswerUsage& usage) {
  std::string json = head_json(identity, identity.chat ? "chat.completion" : "text_completion");
  json += R"(,"choices":[)";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::string text = quoted(choices[i].text);
    json += fmt::format(R"({}{{"index":{},)", i == 0 ? "" : ",", i);
    json += identity.chat ? fmt::format(R"("message":{{"role":"assistant","content":{}}},)", text)
                          : fmt::format(R"("text":{},)", text);
    json += end_json(choices[i].end) + "}";
  }
  return json + R"(],"usage":)" + usage_json(usage) + "}";
}

ChunkWriter::ChunkWriter(const AnswerIdentity& identity)
    : chat_(identity.chat),
      head_("data: " +
            head_json(identity, identity.chat ? "chat.completion.chunk" : "text_completion") +
            R"(,"choices":[)") {}

std::string ChunkWriter::chunk(std::string_view choices, std::string_view usage) const {
  std::string event;
  event.reserve(head_.size() + choices.size() + usage.size() + 16);
  event.append(head_).append(choices).append("]");
  if (!usage.empty()) {
    event.append(R"(,"usage":)").append(usage);
  }
  return event.append("}\n\n");
}

std::string ChunkWriter::role(int choice, std::string_view usage) const {
  return chunk(fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},{}}})",
                           choice, kNotEnded),
               usage);
}

std::string ChunkWriter::text(int choice, std::string_view text, std::string_view usage) const {
  return chunk(chat_
                   ? fmt::format(R"({{"index":{},"delta":{{"content":{}}},{}}})", choice,
                                 quoted(text), kNotEnded)
                   : fmt::format(R"({{"index":{},"text":{},{}}})", choice, quoted(text), kNotEnded),
               usage);
}

std::string ChunkWriter::end(int choice, const ChoiceEnd& end, std::string_view usage) const {
  return chunk(fmt::format(R"({{"index":{},{},{}}})", choice,
                           chat_ ? R"("delta":{})" : R"("text":"")", end_json(end)),
               usage);
}

std::string ChunkWriter::usage(std::string_view usage) const {
  return chunk("", usage);
}

std::string sse_event(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace protean
