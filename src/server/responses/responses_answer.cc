#include "server/responses/responses_answer.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "server/answer/token_report.h"

namespace protean {
namespace {

std::string usage_of(const AnswerUsage& usage) {
  return fmt::format(R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},)"
                     R"("cache_write_tokens":0}},"output_tokens":{},)"
                     R"("output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{}{}}})",
                     usage.prompt_tokens, usage.cached_tokens.value_or(0), usage.output_tokens,
                     usage.prompt_tokens + usage.output_tokens, by_precision(usage));
}

// Returns the reason in the words that SDKs know.
std::string_view code_of(const ApiError& error) {
  if (error.status == 429) {
    return "rate_limit_exceeded";
  }
  return error.status < 500 ? "invalid_prompt" : "server_error";
}

// The state of a response, as its object says it.
struct Progress {
  std::string_view status;
  std::string error = "null";
  std::string usage = "null";
};

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(const AnswerIdentity& identity, const Tokenizer& tokenizer, ResponsesEcho echo)
      : identity_(identity),
        report_(tokenizer, false),
        echo_(std::move(echo)),
        item_suffix_(identity.id.substr(identity.id.find('_') + 1)) {}

  std::string begin(const AnswerUsage&) override {
    const std::string response = R"("response":)" + response_json({.status = "in_progress"});
    std::string events = event("response.created", response);
    return events.append(event("response.in_progress", response));
  }

  std::string piece(int, const AnswerPiece& piece, const AnswerUsage&) override {
    add_tokens(piece.tokens);
    std::string events;
    for (const ToolPiece& part : piece.parts) {
      if (const ContentPiece* content = std::get_if<ContentPiece>(&part)) {
        if (item_.kind != Kind::kMessage) {
          events += close_item("completed");
          events += open_message();
        }
        events += add_text(content->text);
      } else if (const CallBegin* call = std::get_if<CallBegin>(&part)) {
        events += close_item("completed");
        events += open_call(*call);
      } else {
        check(item_.kind == Kind::kCall, "arguments follow the beginning of their call");
        events += add_arguments(std::get<ArgumentsPiece>(part).text);
      }
    }
    return events;
  }

  std::string end_choice(int, const ChoiceEnd& end, const AnswerUsage&) override {
    cut_ = end.reason == EndReason::kLength;
    std::string events;
    if (item_.kind == Kind::kNone && items_.empty()) {
      events += open_message();  // an answer without tokens is an empty message
    }
    const bool whole = item_.kind == Kind::kCall && is_whole(item_.text);
    return events.append(close_item(whole ? "completed" : status()));
  }

  std::string end(const AnswerUsage& usage) override {
    return event(cut_ ? "response.incomplete" : "response.completed",
                 R"("response":)" + response_json({.status = status(), .usage = usage_of(usage)}));
  }

  std::string error(const ApiError& error) override {
    const std::string message = json_text(error.message);
    std::string events =
        event("error", fmt::format(R"("code":"{}","message":{},"param":{})", code_of(error),
                                   message, error.param.empty() ? "null" : json_text(error.param)));
    Progress failed{.status = "failed"};
    failed.error = fmt::format(R"({{"code":"{}","message":{}}})", code_of(error), message);
    return events.append(event("response.failed", R"("response":)" + response_json(failed)));
  }

  // Writes the answer as a stream does, and keeps the last object only.
  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    for (const AnswerPiece& kept : choices.front().pieces) {
      piece(0, kept, usage);
    }
    end_choice(0, choices.front().end, usage);
    return response_json({.status = status(), .usage = usage_of(usage)});
  }

 private:
  enum class Kind { kNone, kMessage, kCall };
  struct Item {
    Kind kind = Kind::kNone;
    std::string id;  // id, call_id and name are JSON
    std::string call_id;
    std::string name;
    std::string text;      // the message's text, or the arguments
    std::string logprobs;  // the message's, as JSON without brackets
  };

  std::string_view status() const { return cut_ ? "incomplete" : "completed"; }

  std::string event(std::string_view type, std::string_view fields) {
    return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},{2}}}\n\n",
                       type, sequence_++, fields);
  }

  std::string response_json(const Progress& progress) const {
    std::string items;
    for (const std::string& item : items_) {
      items.append(items.empty() ? "" : ",").append(item);
    }
    return fmt::format(
        R"({{"id":{},"object":"response","created_at":{},"model":{},"status":"{}",)"
        R"("error":{},"incomplete_details":{},"output":[{}],"usage":{},{}}})",
        json_text(identity_.id), identity_.created_s, json_text(identity_.model), progress.status,
        progress.error,
        progress.status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null", items,
        progress.usage, echo_.fields);
  }

  std::string place() const {  // the open item's place, for events about it
    return fmt::format(R"("item_id":{},"output_index":{})", item_.id, items_.size());
  }
  std::string part_json(std::string_view text_json) const {
    return fmt::format(R"({{"type":"output_text","annotations":[],"logprobs":[{}],"text":{}}})",
                       item_.logprobs, text_json);
  }
  std::string message_json(std::string_view status, std::string_view content) const {
    return fmt::format(
        R"({{"type":"message","id":{},"status":"{}","role":"assistant","content":[{}]}})", item_.id,
        status, content);
  }
  std::string call_json(std::string_view status) const {
    return fmt::format(R"({{"type":"function_call","id":{},"call_id":{},"name":{},)"
                       R"("arguments":{},"status":"{}"}})",
                       item_.id, item_.call_id, item_.name, json_text(item_.text), status);
  }
  std::string item_event(std::string_view type, std::string_view item) {
    return event(type, fmt::format(R"("output_index":{},"item":{})", items_.size(), item));
  }
  std::string item_id(std::string_view prefix) const {
    return json_text(fmt::format("{}{}_{}", prefix, item_suffix_, items_.size()));
  }

  std::string open_message() {
    item_ = {.kind = Kind::kMessage, .id = item_id("msg_")};
    std::string events = item_event("response.output_item.added", message_json("in_progress", ""));
    return events.append(
        event("response.content_part.added",
              fmt::format(R"({},"content_index":0,"part":{})", place(), part_json(R"("")"))));
  }
  // Keeps log-probabilities until their text is added, since tokens may come earlier.
  void add_tokens(std::span<const AnswerToken> tokens) {
    const std::string told = echo_.logprobs ? report_.tokens_json(tokens, echo_.top_logprobs) : "";
    fresh_logprobs_.append(fresh_logprobs_.empty() || told.empty() ? "" : ",").append(told);
  }
  std::string add_text(std::string_view text) {
    item_.text += text;
    const std::string logprobs = std::exchange(fresh_logprobs_, {});
    item_.logprobs.append(item_.logprobs.empty() || logprobs.empty() ? "" : ",").append(logprobs);
    return event("response.output_text.delta",
                 fmt::format(R"({},"content_index":0,"delta":{},"logprobs":[{}])", place(),
                             json_text(text), logprobs));
  }
  std::string open_call(const CallBegin& call) {
    fresh_logprobs_.clear();  // calls have no logprobs
    item_ = {.kind = Kind::kCall,
             .id = item_id("fc_"),
             .call_id = json_text(call.id),
             .name = json_text(call.name)};
    return item_event("response.output_item.added", call_json("in_progress"));
  }
  std::string add_arguments(std::string_view text) {
    item_.text += text;
    return event("response.function_call_arguments.delta",
                 fmt::format(R"({},"delta":{})", place(), json_text(text)));
  }

  std::string close_item(std::string_view status) {
    if (item_.kind == Kind::kNone) {
      return {};
    }
    const std::string text = json_text(item_.text);
    std::string events;
    std::string item;
    if (item_.kind == Kind::kMessage) {
      const std::string part = part_json(text);
      events = event("response.output_text.done",
                     fmt::format(R"({},"content_index":0,"text":{},"logprobs":[{}])", place(), text,
                                 item_.logprobs));
      events += event("response.content_part.done",
                      fmt::format(R"({},"content_index":0,"part":{})", place(), part));
      item = message_json(status, part);
    } else {
      events = event("response.function_call_arguments.done",
                     fmt::format(R"({},"name":{},"arguments":{})", place(), item_.name, text));
      item = call_json(status);
    }
    events += item_event("response.output_item.done", item);
    items_.push_back(std::move(item));
    item_ = {};
    return events;
  }

  const AnswerIdentity identity_;
  const TokenReport report_;
  const ResponsesEcho echo_;
  const std::string item_suffix_;
  int sequence_ = 0;
  std::vector<std::string> items_;  // finished items, as JSON
  Item item_;                       // the open item
  std::string fresh_logprobs_;      // log-probabilities of tokens whose text is not known yet
  bool cut_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(const AnswerIdentity& identity,
                                                    const Tokenizer& tokenizer,
                                                    ResponsesEcho echo) {
  return std::make_unique<ResponsesWriter>(identity, tokenizer, std::move(echo));
}

}  // namespace protean
