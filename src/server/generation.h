#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/request.h"
#include "ports/token_sink.h"
#include "server/answer_record.h"
#include "server/answer_writer.h"
#include "server/api_error.h"
#include "server/choice_text.h"
#include "server/generation_call.h"
#include "server/served_model.h"

namespace protean {

// The status, customary in logs, of a request whose client left before the answer.
inline constexpr int kClientGone = 499;

// What becomes of one request for text: takes the engine's outputs for its choices and has a
// writer, which knows the client's dialect, make the response of them, as events when streaming,
// else whole. A state machine without socket or thread: the service feeds it, a connection empties
// it, both on the io thread. Until begin() it only waits: its prompt may still be being prepared.
class Generation {
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

  // For the connection. Nothing may be sent before started(): a refusal still needs its status.
  bool streaming() const { return streaming_; }
  bool started() const { return started_; }
  bool done() const { return done_; }
  const std::optional<ApiError>& failure() const { return failure_; }
  ErrorStyle errors() const { return writer_ == nullptr ? ErrorStyle::kOpenAi : writer_->errors(); }
  // Of the answer's pieces, that wait for a client to read them. What is told once, such as a
  // request that is repeated, is as long as it must be and does not count.
  std::size_t unsent_bytes() const { return unsent_bytes_; }
  std::string take_events();  // streaming: what is new
  std::string take_body();    // not streaming, done and not failed
  // What may be sent to a streaming client that has waited long, between events.
  std::string keep_alive() const { return writer_->keep_alive(); }
  std::function<void()> on_change;  // called when one of these may have changed
  AnswerRecord record;              // kept by others, for logs and traces

  // For the service.
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
  // One prompt, computed and scored with the first of its choices.
  struct Prompt {
    AnswerPrompt told;
    std::size_t unscored = 0;  // tokens whose likelihoods are still to come
  };
  struct Choice {
    ChoiceText text;
    int output_tokens = 0;
    bool prompt_told = false;
    bool end_told = false;
    bool stepped = false;  // got a token since the last flush
    AnswerPiece fresh;     // since the last flush
    std::optional<ChoiceEnd> end;
    AnswerChoice whole;  // when not streaming
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
  std::size_t ended_ = 0;
  bool started_ = false;
  bool done_ = false;
  std::optional<ApiError> failure_;
  std::string events_;
  std::size_t unsent_bytes_ = 0;
};

}  // namespace protean
