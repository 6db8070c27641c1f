#include "server/ollama/ollama_answer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/units.h"
#include "server/answer/embedding_text.h"
#include "server/answer/token_report.h"

namespace protean {
namespace {

std::string head(const AnswerIdentity& identity) {
  return fmt::format(R"({{"model":{},"created_at":"{}",)", json_text(identity.model),
                     ollama_time(identity.created_s));
}

// Arguments are an object here; text that max_tokens cut off is kept under a key of its own.
std::string call_json(const AnswerCall& call) {
  const std::string arguments =
      is_whole(call.arguments) ? call.arguments
                               : fmt::format(R"({{"INVALID_JSON":{}}})", json_text(call.arguments));
  return fmt::format(R"({{"id":{},"function":{{"name":{},"arguments":{}}}}})", json_text(call.id),
                     json_text(call.name), arguments);
}

std::string calls_field(const std::vector<AnswerCall>& calls) {
  std::string field;
  for (const AnswerCall& call : calls) {
    field += (field.empty() ? R"(,"tool_calls":[)" : ",") + call_json(call);
  }
  return field.empty() ? "" : field + "]";
}

// Token counts, and times in nanoseconds.
std::string counts(const AnswerUsage& usage) {
  const RequestTimes& times = usage.times;
  const auto between = [](TimeNs from, TimeNs to) {
    return from < 0 || to < from ? TimeNs{0} : to - from;
  };
  return fmt::format(
      R"("total_duration":{},"load_duration":0,"prompt_eval_count":{},"prompt_eval_duration":{},)"
      R"("eval_count":{},"eval_duration":{})",
      between(times.arrived_ns, times.finished_ns), usage.prompt_tokens,
      between(times.scheduled_ns, times.first_token_ns), usage.output_tokens,
      between(times.first_token_ns, times.finished_ns));
}

class OllamaWriter : public AnswerWriter {
 public:
  OllamaWriter(AnswerIdentity identity, OllamaCall kind)
      : identity_(std::move(identity)), kind_(kind) {}

  std::string begin(const AnswerUsage&) override { return {}; }

  std::string piece(int, const AnswerPiece& piece, const AnswerUsage&) override {
    std::string text;
    std::vector<AnswerCall> complete;
    for (const ToolPiece& part : piece.parts) {
      if (const CallBegin* call = std::get_if<CallBegin>(&part)) {
        close_call(complete);
        open_ = AnswerCall{.id = call->id, .name = call->name, .arguments = {}};
      } else if (open_ && std::get_if<ArgumentsPiece>(&part) != nullptr) {
        open_->arguments += text_of(part);
      } else {
        close_call(complete);
        text += text_of(part);
      }
    }
    return text.empty() && complete.empty() ? "" : line(text, complete, R"("done":false)");
  }

  std::string end_choice(int, const ChoiceEnd& end, const AnswerUsage&) override {
    end_ = end;
    std::vector<AnswerCall> complete;
    close_call(complete);
    return complete.empty() ? "" : line("", complete, R"("done":false)");
  }

  std::string end(const AnswerUsage& usage) override { return line("", {}, ending(usage)); }

  std::string error(const ApiError& error) override { return error_json(error, errors()) + "\n"; }

  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    const SortedAnswer answer = sorted(choices.front());
    end_ = choices.front().end;
    std::string body = line(answer.text, answer.calls, ending(usage));
    body.pop_back();
    return body;
  }

  std::string keep_alive() const override { return {}; }  // NDJSON has no comments
  std::string_view stream_type() const override { return "application/x-ndjson"; }
  ErrorStyle errors() const override { return ErrorStyle::kOllama; }

 private:
  std::string line(std::string_view text, const std::vector<AnswerCall>& calls,
                   std::string_view end) const {
    const std::string content =
        kind_ == OllamaCall::kGenerate
            ? fmt::format(R"("response":{})", json_text(text))
            : fmt::format(R"("message":{{"role":"assistant","content":{}{}}})", json_text(text),
                          calls_field(calls));
    return fmt::format("{}{},{}}}\n", head(identity_), content, end);
  }

  std::string ending(const AnswerUsage& usage) const {
    return fmt::format(R"("done":true,"done_reason":"{}",{})",
                       end_.reason == EndReason::kLength ? "length" : "stop", counts(usage));
  }

  void close_call(std::vector<AnswerCall>& complete) {
    if (open_) {
      complete.push_back(*std::exchange(open_, std::nullopt));
    }
  }

  const AnswerIdentity identity_;
  const OllamaCall kind_;
  std::optional<AnswerCall> open_;  // a call whose arguments are still coming
  ChoiceEnd end_;
};

class OllamaEmbeddingWriter : public AnswerWriter {
 public:
  OllamaEmbeddingWriter(std::string model, OllamaEmbedding kind)
      : model_(std::move(model)), kind_(kind) {}

  std::string begin(const AnswerUsage&) override { return {}; }
  std::string piece(int, const AnswerPiece&, const AnswerUsage&) override { return {}; }
  std::string end_choice(int, const ChoiceEnd&, const AnswerUsage&) override { return {}; }
  std::string end(const AnswerUsage&) override { return {}; }
  std::string error(const ApiError&) override { return {}; }
  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    if (kind_ == OllamaEmbedding::kEmbeddings) {
      return fmt::format(R"({{"embedding":{}}})", numbers_json(choices.front().embedding));
    }
    std::string vectors;
    for (const AnswerChoice& choice : choices) {
      vectors += (vectors.empty() ? "" : ",") + numbers_json(unit_length(choice.embedding));
    }
    const RequestTimes& times = usage.times;
    return fmt::format(
        R"({{"model":{},"embeddings":[{}],"total_duration":{},"load_duration":0,"prompt_eval_count":{}}})",
        json_text(model_), vectors, std::max<TimeNs>(0, times.finished_ns - times.arrived_ns),
        usage.prompt_tokens);
  }
  ErrorStyle errors() const override { return ErrorStyle::kOllama; }

 private:
  const std::string model_;
  const OllamaEmbedding kind_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_ollama_writer(const AnswerIdentity& identity, OllamaCall kind) {
  return std::make_unique<OllamaWriter>(identity, kind);
}

std::unique_ptr<AnswerWriter> make_ollama_embedding_writer(const AnswerIdentity& identity,
                                                           OllamaEmbedding kind) {
  return std::make_unique<OllamaEmbeddingWriter>(identity.model, kind);
}

std::string ollama_time(std::int64_t unix_time_s) {
  const std::chrono::sys_seconds time{std::chrono::seconds(unix_time_s)};
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", time);
}

}  // namespace protean
