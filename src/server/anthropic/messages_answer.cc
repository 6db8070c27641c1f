#include "server/anthropic/messages_answer.h"

#include <fmt/format.h>

#include "base/check.h"
#include "server/answer/token_report.h"

namespace protean {
namespace {

std::string event(std::string_view type, std::string_view fields) {
  return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\"{1}{2}}}\n\n", type,
                     fields.empty() ? "" : ",", fields);
}

// In this API input_tokens does not include the tokens found in the cache.
std::string token_counts(const AnswerUsage& usage) {
  const std::int64_t cached = usage.cached_tokens.value_or(0);
  return fmt::format(R"("input_tokens":{},"cache_creation_input_tokens":0,)"
                     R"("cache_read_input_tokens":{},"output_tokens":{},)"
                     R"("output_tokens_details":null,"server_tool_use":null{})",
                     usage.prompt_tokens - cached, cached, usage.output_tokens,
                     by_precision(usage));
}

std::string call_block(const CallBegin& call, std::string_view input) {
  return fmt::format(
      R"({{"type":"tool_use","id":{},"caller":{{"type":"direct"}},"name":{},"input":{}}})",
      json_text(call.id), json_text(call.name), input);
}

std::string text_block(std::string_view text) {
  return fmt::format(R"({{"type":"text","text":{},"citations":null}})", json_text(text));
}

// Returns the arguments as an object. If they were cut off by max_tokens and are none, the object
// holds their text under the key that Anthropic's documentation gives for such input.
std::string input_of(std::string_view arguments) {
  return is_whole(arguments) ? std::string(arguments)
                             : fmt::format(R"({{"INVALID_JSON":{}}})", json_text(arguments));
}

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(const AnswerIdentity& identity, std::int64_t max_tokens)
      : identity_(identity), max_tokens_(max_tokens) {}

  std::string begin(const AnswerUsage& so_far) override {
    return event("message_start", R"("message":)" + message("", so_far));
  }

  std::string piece(int, const AnswerPiece& piece, const AnswerUsage&) override {
    std::string events;
    for (const ToolPiece& part : piece.parts) {
      if (const ContentPiece* content = std::get_if<ContentPiece>(&part)) {
        if (open_ != Open::kText) {
          events += close_block();
          events += open_block(Open::kText, text_block(""));
        }
        events += delta("text_delta", "text", content->text);
      } else if (const CallBegin* call = std::get_if<CallBegin>(&part)) {
        events += close_block();
        events += open_block(Open::kCall, call_block(*call, "{}"));
      } else {
        check(open_ == Open::kCall, "arguments follow the beginning of their call");
        events += delta("input_json_delta", "partial_json", std::get<ArgumentsPiece>(part).text);
      }
    }
    return events;
  }

  std::string end_choice(int, const ChoiceEnd& end, const AnswerUsage&) override {
    end_ = end;
    return close_block();
  }

  std::string end(const AnswerUsage& usage) override {
    return event("message_delta", fmt::format(R"("delta":{{{},"container":null}},"usage":{{{}}})",
                                              ending(usage), token_counts(usage))) +
           event("message_stop", "");
  }

  std::string error(const ApiError& error) override {
    return fmt::format("event: error\ndata: {}\n\n",
                       error_json(error, errors(), identity_.id.substr(kMessageIdPrefix.size())));
  }

  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    const AnswerChoice& choice = choices.front();
    end_ = choice.end;
    std::string content;
    std::string text;  // text of the open block
    const CallBegin* call = nullptr;
    const auto close = [&] {
      const std::string block = call != nullptr ? call_block(*call, input_of(text))
                                : text.empty()  ? ""
                                                : text_block(text);
      content.append(content.empty() || block.empty() ? "" : ",").append(block);
      text.clear();
      call = nullptr;
    };
    for (const AnswerPiece& piece : choice.pieces) {
      for (const ToolPiece& part : piece.parts) {
        const bool content_follows_call = call != nullptr && std::get_if<ContentPiece>(&part);
        if (std::get_if<CallBegin>(&part) != nullptr || content_follows_call) {
          close();
          call = std::get_if<CallBegin>(&part);
        }
        text += text_of(part);
      }
    }
    close();
    return message(content, usage);
  }

  std::string keep_alive() const override { return event("ping", ""); }
  ErrorStyle errors() const override { return ErrorStyle::kAnthropic; }
  std::string_view call_id_prefix() const override { return "toolu_"; }

 private:
  enum class Open { kNone, kText, kCall };

  std::string open_block(Open kind, std::string_view block) {
    open_ = kind;
    return event("content_block_start",
                 fmt::format(R"("index":{},"content_block":{})", index_, block));
  }
  std::string delta(std::string_view type, std::string_view field, std::string_view text) const {
    return event("content_block_delta", fmt::format(R"("index":{},"delta":{{"type":"{}","{}":{}}})",
                                                    index_, type, field, json_text(text)));
  }
  std::string close_block() {
    if (open_ == Open::kNone) {
      return {};
    }
    open_ = Open::kNone;
    return event("content_block_stop", fmt::format(R"("index":{})", index_++));
  }

  std::string ending(const AnswerUsage& usage) const {
    if (!end_) {
      return R"("stop_reason":null,"stop_sequence":null,"stop_details":null)";
    }
    std::string_view reason = "end_turn";
    const std::string* stop = std::get_if<std::string>(&end_->stop_reason);
    if (end_->reason == EndReason::kLength) {
      reason = usage.output_tokens < max_tokens_ ? "model_context_window_exceeded" : "max_tokens";
    } else if (end_->reason == EndReason::kToolCalls) {
      reason = "tool_use";
    } else if (stop != nullptr) {
      reason = "stop_sequence";
    }
    return fmt::format(R"("stop_reason":"{}","stop_sequence":{},"stop_details":null)", reason,
                       stop == nullptr ? "null" : json_text(*stop));
  }

  std::string message(std::string_view content, const AnswerUsage& usage) const {
    return fmt::format(R"({{"id":{},"type":"message","role":"assistant","model":{},)"
                       R"("content":[{}],{},"container":null,"diagnostics":null,)"
                       R"("usage":{{{},"cache_creation":null,"inference_geo":null,)"
                       R"("service_tier":"standard","speed":null}}}})",
                       json_text(identity_.id), json_text(identity_.model), content, ending(usage),
                       token_counts(usage));
  }

  const AnswerIdentity identity_;
  const std::int64_t max_tokens_;
  Open open_ = Open::kNone;
  int index_ = 0;  // index of the open block, or of the next one
  std::optional<ChoiceEnd> end_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(const AnswerIdentity& identity,
                                                   std::int64_t max_tokens) {
  return std::make_unique<MessagesWriter>(identity, max_tokens);
}

}  // namespace protean
