#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/request.h"
#include "http/api_error.h"
#include "http/growing_answer.h"
#include "ports/token_sink.h"
#include "server/answer/answer_record.h"
#include "server/answer/answer_writer.h"
#include "server/answer/choice_text.h"
#include "server/answer/served_model.h"
#include "server/call/generation_call.h"

namespace protean {

// What becomes of one request for text: takes the engine's outputs for its choices and has a
// writer, which knows the client's dialect, make the response of them, as events when streaming,
// else whole. A state machine without socket or thread: the service feeds it, a connection empties
// it, both on the io thread. Until begin() it only waits: its prompt may still be being prepared.
class Generation final : public GrowingAnswer {
 public:
  // `nonce` makes ids of tool calls unique. The model's tokenizer outlives this.
  Generation(AnswerIdentity identity, const GenerationCall& call, const ServedModel& model,
             std::unique_ptr<AnswerWriter> writer, std::uint64_t nonce);

  // The engine requests, with their ids, in the order of choices.
  void begin(const std::vector<PreparedChoice>& prepared);

  // From the engine, by choice (an index into the answer). What comes after the end is ignored.
  void accepted();
  void refused(const Error& error);
  void scored(int index, const PromptScored& scored);
  void token(int index, const NewToken& token);
  void finished(int index, const Finished& finished);
  // After a batch of the above: makes one event of each choice's new text.
  void flush();
  // Ends it all with an error, in the stream when that has begun.
  void fail(ApiError error);

  // For the connection.
  const std::string& id() const override { return identity_.id; }
  bool streaming() const override { return streaming_; }
  bool started() const override { return started_; }
  bool done() const override { return done_; }
  const std::optional<ApiError>& failure() const override { return failure_; }
  ErrorStyle errors() const override {
    return writer_ == nullptr ? ErrorStyle::kOpenAi : writer_->errors();
  }
  std::size_t unsent_bytes() const override { return unsent_bytes_; }
  std::string take_events() override;
  std::string take_body() override;
  std::string keep_alive() const override { return writer_->keep_alive(); }
  void abandon() override;

  // For the service.
  std::function<void()> on_abandoned;
  AnswerRecord record;  // for logs and traces
  const AnswerIdentity& identity() const { return identity_; }
  const std::vector<RequestId>& requests() const { return requests_; }
  bool wants_more(int choice) const;  // false: the engine need not go on with this choice
  std::string_view finish_reason(int choice) const;

 private:
  // What of the call matters here.
  struct Asked {
    std::size_t choices_per_prompt = 1;
    bool has_slo = false;
    bool slo_is_first = false;  // it is over before the time of the whole answer
    bool tokens = false;        // what the answer's tokens are, or their logprobs
    bool prompt_tokens = false;
  };
  struct Choice {
    ChoiceText text;
    AnswerPrompt prompt;
    int prompt_tokens = 0;  // 0 for all but the first choice of a prompt
    int output_tokens = 0;
    int cached_tokens = 0;
    std::vector<TokensAt> output_at;
    bool prompt_told = false;
    bool stepped = false;  // got a token since the last flush
    AnswerPiece fresh;     // since the last flush
    std::optional<ChoiceEnd> end;
    AnswerChoice whole;  // when not streaming
  };

  Choice& at(int index) { return choices_.at(static_cast<std::size_t>(index)); }
  ChoiceEnd end_of(Choice& choice, const Finished& finished) const;
  void flush(int index, Choice& choice);
  void finish_all();
  AnswerUsage usage() const;

  const AnswerIdentity identity_;
  const bool streaming_;
  const Asked asked_;
  const std::vector<TokenId> client_stop_ids_;
  const TextRules rules_;
  const Tokenizer& tokenizer_;
  const std::unique_ptr<AnswerWriter> writer_;
  const std::uint64_t nonce_;
  std::vector<Choice> choices_;
  std::vector<RequestId> requests_;
  std::size_t accepted_ = 0;
  std::size_t ended_ = 0;
  bool started_ = false;
  bool done_ = false;
  std::optional<ApiError> failure_;
  std::string events_;
  std::size_t unsent_bytes_ = 0;
};

}  // namespace protean
