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

// The answer to one request for text or embeddings. Takes the engine's outputs for its choices and
// has the writer of the client's dialect turn them into a response. A state machine without socket
// or thread: the service feeds it and a connection takes from it, both on the io thread. Before
// begin() it waits while its prompt is prepared.
class Generation final : public GrowingAnswer {
 public:
  // `nonce` makes ids of tool calls unique. The model's tokenizer outlives the generation.
  Generation(AnswerIdentity identity, const GenerationCall& call, const ServedModel& model,
             std::unique_ptr<AnswerWriter> writer, std::uint64_t nonce);

  // Gives the engine requests, with their ids, in the order of choices.
  void begin(const std::vector<PreparedChoice>& prepared);

  // Outputs of the engine for a choice (an index into the answer). After the end they are ignored.
  void accepted();
  void refused(const Error& error);
  void scored(int index, const PromptScored& scored);
  void token(int index, const NewToken& token);
  void finished(int index, const Finished& finished);
  // Called after a batch of the above: makes one event of each choice's new text.
  void flush();
  // Fails the answer: as an HTTP error, or as an error event if streaming has begun.
  void fail(ApiError error);

  // For the connection.
  const std::string& id() const override { return identity_.id; }
  bool streaming() const override { return streaming_; }
  std::string_view stream_type() const override { return writer_->stream_type(); }
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
  std::function<void()> on_abandoned;  // called when the client has left
  AnswerRecord record;                 // filled by the service
  const AnswerIdentity& identity() const { return identity_; }
  const std::vector<RequestId>& requests() const { return requests_; }
  // False if the engine need not go on with this choice.
  bool wants_more(int choice) const;
  std::string_view finish_reason(int choice) const;

 private:
  // What the answer depends on in the call.
  struct Asked {
    std::size_t choices_per_prompt = 1;
    bool has_slo = false;
    bool slo_is_first = false;  // the first token's deadline is no later than the answer's
    bool tokens = false;        // token ids or logprobs of the answer
    bool prompt_tokens = false;
  };
  // One prompt, computed and scored with the first of its choices.
  struct Prompt {
    AnswerPrompt told;
    std::size_t unscored = 0;  // tokens whose likelihoods are still to come
  };
  struct Choice {
    ChoiceText text;
    int output_tokens = 0;
    std::vector<TokensAt> output_at;  // tokens that came, by precision
    bool prompt_told = false;
    bool end_told = false;
    bool stepped = false;  // a token came since the last flush
    AnswerPiece fresh;     // what came since the last flush
    std::optional<ChoiceEnd> end;
    AnswerChoice whole;  // if the answer is not streamed
  };

  Choice& at(int index) { return choices_.at(static_cast<std::size_t>(index)); }
  bool is_first(std::size_t index) const { return index % asked_.choices_per_prompt == 0; }
  Prompt& prompt_of(std::size_t index) { return prompts_.at(index / asked_.choices_per_prompt); }
  ChoiceEnd end_of(Choice& choice, const Finished& finished);
  void flush(int index, Choice& choice);
  void finish_all();

  const AnswerIdentity identity_;
  const bool streaming_;
  const Asked asked_;
  const std::vector<TokenId> client_stop_ids_;
  const TextRules rules_;
  const Tokenizer& tokenizer_;
  const std::unique_ptr<AnswerWriter> writer_;
  const std::uint64_t nonce_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;
  AnswerUsage usage_{.cached_tokens = 0};  // so far
  std::vector<RequestId> requests_;
  std::size_t accepted_ = 0;
  bool started_ = false;
  bool done_ = false;
  std::optional<ApiError> failure_;
  std::string events_;
  std::size_t unsent_bytes_ = 0;
};

}  // namespace protean
