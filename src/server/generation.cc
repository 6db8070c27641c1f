#include "server/generation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

// The text begins with the answer when nothing but BOS came before it.
bool at_text_start(const Request& request, const Tokenizer& tokenizer) {
  return request.prompt.size() == 1 && request.prompt[0] == tokenizer.bos();
}

}  // namespace

Generation::Generation(AnswerIdentity identity, const GenerationCall& call,
                       const Tokenizer& tokenizer, const std::vector<Request>& requests,
                       std::unique_ptr<AnswerWriter> writer)
    : identity_(std::move(identity)),
      streaming_(call.stream.enabled),
      client_stop_ids_(call.stop.token_ids),
      writer_(std::move(writer)) {
  const StopMatcher matcher(call.stop.strings, call.stop.keep_string);
  choices_.reserve(requests.size());
  for (const Request& request : requests) {
    requests_.push_back(request.id);
    choices_.push_back({.text = StreamText(tokenizer, matcher, at_text_start(request, tokenizer)),
                        .prompt_tokens = static_cast<int>(request.prompt.size())});
  }
}

void Generation::accepted() {
  if (++accepted_ < choices_.size() || done_) {
    return;
  }
  started_ = true;
  if (streaming_) {
    events_ += writer_->begin(usage());
  }
}

void Generation::token(int index, TokenId token) {
  Choice& choice = choices_.at(static_cast<std::size_t>(index));
  if (done_ || choice.end || choice.text.stopped_by()) {
    return;
  }
  ++choice.output_tokens;
  choice.stepped = true;
  choice.fresh += choice.text.push(token);
}

void Generation::finished(int index, const Finished& finished) {
  Choice& choice = choices_.at(static_cast<std::size_t>(index));
  if (done_ || choice.end) {
    return;
  }
  choice.cached_tokens = finished.usage.cached_tokens;
  choice.fresh += choice.text.finish();
  if (const auto& stop = choice.text.stopped_by()) {
    choice.end =
        ChoiceEnd{EndReason::kStop, *stop};  // the engine ran on a little, its end is not ours
  } else if (finished.reason == FinishReason::kLength) {
    choice.end = ChoiceEnd{EndReason::kLength, {}};
  } else if (finished.reason == FinishReason::kStop) {
    choice.output_tokens = finished.usage.output_tokens;  // the stop token counts
    const bool clients = std::find(client_stop_ids_.begin(), client_stop_ids_.end(),
                                   finished.stop_id) != client_stop_ids_.end();
    choice.end = ChoiceEnd{};
    if (clients) {
      choice.end->stop_reason = finished.stop_id;
    }
  } else if (finished.reason == FinishReason::kFailed) {
    return fail({.status = 500, .message = "the answer failed: " + finished.failure});
  } else {
    return fail({.status = 503, .message = "the request was cancelled by the server"});
  }
  flush(index, choice);
  if (streaming_) {
    events_ += writer_->end_choice(index, *choice.end, usage());
  }
  if (++ended_ == choices_.size()) {
    finish_all();
  }
}

void Generation::flush() {
  for (std::size_t i = 0; i < choices_.size() && !done_; ++i) {
    flush(static_cast<int>(i), choices_[i]);
  }
}

void Generation::flush(int index, Choice& choice) {
  if (!streaming_) {
    choice.whole.text += std::exchange(choice.fresh, {});
    return;
  }
  // A step without text, inside a character or a possible stop string, is an event all the same:
  // clients measure the time between tokens by events.
  if (choice.stepped || !choice.fresh.empty()) {
    AnswerPiece piece;
    if (!choice.fresh.empty()) {
      piece.parts.emplace_back(ContentPiece{std::exchange(choice.fresh, {})});
    }
    events_ += writer_->piece(index, piece, usage());
    choice.stepped = false;
  }
}

void Generation::finish_all() {
  done_ = true;
  if (streaming_) {
    events_ += writer_->end(usage());
  }
}

void Generation::fail(ApiError error) {
  if (done_) {
    return;
  }
  done_ = true;
  if (started_ && streaming_) {
    events_ += writer_->error(error);
  }
  failure_ = std::move(error);
}

std::string Generation::take_events() {
  return std::exchange(events_, {});
}

std::string Generation::take_body() {
  check(done_ && !failure_, "there is no body of an unfinished answer");
  std::vector<AnswerChoice> finished;
  for (Choice& choice : choices_) {
    choice.whole.end = *choice.end;
    finished.push_back(std::move(choice.whole));
  }
  return writer_->whole(finished, usage());
}

bool Generation::wants_more(int choice) const {
  return !done_ && !choices_.at(static_cast<std::size_t>(choice)).text.stopped_by();
}

std::string_view Generation::finish_reason(int choice) const {
  const auto& end = choices_.at(static_cast<std::size_t>(choice)).end;
  if (end) {
    return to_string(end->reason);
  }
  return failure_ && failure_->status != kClientGone ? "error" : "abort";
}

AnswerUsage Generation::usage() const {
  AnswerUsage sum{.cached_tokens = 0};
  for (const Choice& choice : choices_) {
    sum.prompt_tokens += choice.prompt_tokens;
    sum.output_tokens += choice.output_tokens;
    *sum.cached_tokens += choice.cached_tokens;
  }
  return sum;
}

}  // namespace protean
