#include "server/answer/generation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

// Returns the text at the end of `piece` that `more` continues; null if it continues none.
std::string* text_to_join(AnswerPiece& piece, const AnswerPiece& more) {
  if (piece.parts.empty() || more.parts.size() != 1) {
    return nullptr;
  }
  if (std::holds_alternative<ContentPiece>(more.parts.front())) {
    ContentPiece* content = std::get_if<ContentPiece>(&piece.parts.back());
    return content == nullptr ? nullptr : &content->text;
  }
  ArgumentsPiece* arguments = std::get_if<ArgumentsPiece>(&piece.parts.back());
  const bool goes_on = std::holds_alternative<ArgumentsPiece>(more.parts.front());
  return arguments == nullptr || !goes_on ? nullptr : &arguments->text;
}

// Adds a piece to those of an answer that is not streamed. Joins it to the last one if possible.
void keep(AnswerPiece piece, std::vector<AnswerPiece>& pieces) {
  if (piece.parts.empty() && piece.tokens.empty()) {
    return;
  }
  if (pieces.empty()) {
    return pieces.push_back(std::move(piece));
  }
  AnswerPiece& last = pieces.back();
  if (last.parts.empty()) {  // tokens whose text has not come yet
    last.parts = std::move(piece.parts);
  } else if (std::string* text = text_to_join(last, piece)) {
    *text += text_of(piece.parts.front());
  } else {
    return pieces.push_back(std::move(piece));
  }
  std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(last.tokens));
}

}  // namespace

Generation::Generation(AnswerIdentity identity, const GenerationCall& call,
                       const ServedModel& model, std::unique_ptr<AnswerWriter> writer,
                       std::uint64_t nonce)
    : identity_(std::move(identity)),
      streaming_(call.stream.enabled),
      asked_{.choices_per_prompt = static_cast<std::size_t>(call.n),
             .has_slo = call.urgency.ttft_ms.has_value(),
             .slo_is_first =
                 call.urgency.ttft_ms.has_value() &&
                 (!call.urgency.timeout_ms || call.urgency.ttft_ms <= call.urgency.timeout_ms),
             .tokens = call.report.of_tokens(),
             .prompt_tokens = call.report.prompt_logprobs || call.report.token_ids ||
                              (call.prompt.echo && call.report.logprobs)},
      client_stop_ids_(call.stop.token_ids),
      rules_(text_rules(call, model)),
      tokenizer_(*model.tokenizer),
      writer_(std::move(writer)),
      nonce_(nonce) {}

void Generation::begin(const std::vector<PreparedChoice>& prepared) {
  constexpr std::uint64_t kCallsPerChoice = 1U << 20U;
  choices_.reserve(prepared.size());
  for (std::size_t i = 0; i < prepared.size(); ++i) {
    const Request& request = prepared[i].request;
    const ChoiceText::Ids ids{.prefix = writer_->call_id_prefix(),
                              .nonce = nonce_ + i * kCallsPerChoice};
    if (is_first(i)) {
      Prompt& prompt = prompts_.emplace_back();
      prompt.told.echo = prepared[i].echo;
      for (std::size_t at = 0; asked_.prompt_tokens && at < request.prompt.size(); ++at) {
        prompt.told.tokens.push_back({.token = request.prompt[at]});
      }
      prompt.unscored = request.logprobs.prompt ? request.prompt.size() - 1 : 0;
      usage_.prompt_tokens += std::ssize(request.prompt);
    }
    Choice choice{.text = ChoiceText(rules_, tokenizer_, prepared[i], ids)};
    choice.prompt_told = prepared[i].echo.empty() && !asked_.prompt_tokens;
    requests_.push_back(request.id);
    choices_.push_back(std::move(choice));
  }
}

void Generation::accepted() {
  if (++accepted_ < choices_.size() || done_) {
    return;
  }
  started_ = true;
  if (streaming_) {  // events of one choice may have come before another was accepted
    events_.insert(0, writer_->begin(usage_));
  }
}

void Generation::refused(const Error& error) {
  ApiError told = to_api_error(error);
  if (asked_.has_slo && error.code == ErrorCode::kExhausted) {
    told.param = "x-slo-ttft-ms";
    told.code = "slo_unattainable";
  }
  fail(std::move(told));
}

void Generation::scored(int index, const PromptScored& scored) {
  Prompt& prompt = prompt_of(static_cast<std::size_t>(index));
  for (std::size_t i = 0; i < scored.logprobs.size(); ++i) {
    const std::size_t position = static_cast<std::size_t>(scored.first_position) + i;
    if (position < prompt.told.tokens.size()) {
      prompt.told.tokens[position].logprobs = scored.logprobs[i];
    }
  }
  prompt.unscored -= std::min(prompt.unscored, scored.logprobs.size());
}

void Generation::token(int index, const NewToken& token) {
  Choice& choice = at(index);
  if (done_ || choice.end || choice.text.ended()) {
    return;
  }
  ++choice.output_tokens;
  ++usage_.output_tokens;
  if (token.precision != nullptr) {
    const TokensAt one{*token.precision, 1};
    add(usage_.output_at, std::span(&one, 1));
    add(choice.output_at, std::span(&one, 1));
  }
  choice.stepped = true;
  choice.text.push(token.token, choice.fresh.parts);
  if (asked_.tokens) {
    choice.fresh.tokens.push_back({.token = token.token, .logprobs = token.logprobs});
  }
}

ChoiceEnd Generation::end_of(Choice& choice, const Finished& finished) {
  ChoiceEnd end;
  if (const auto& stop = choice.text.stopped_by()) {
    end.stop_reason = *stop;  // the engine went on for some steps; its reason does not count
  } else if (finished.reason == FinishReason::kLength && !choice.text.ended()) {
    end.reason = EndReason::kLength;
  } else if (finished.reason == FinishReason::kStop) {
    usage_.output_tokens += finished.usage.output_tokens - choice.output_tokens;
    choice.output_tokens = finished.usage.output_tokens;  // the stop token counts
    if (std::find(client_stop_ids_.begin(), client_stop_ids_.end(), finished.stop_id) !=
        client_stop_ids_.end()) {
      end.stop_reason = finished.stop_id;
    }
  }
  if (end.reason == EndReason::kStop && choice.text.called()) {
    end.reason = EndReason::kToolCalls;
  }
  return end;
}

void Generation::finished(int index, const Finished& finished) {
  Choice& choice = at(index);
  if (done_ || choice.end) {
    return;
  }
  if (is_first(static_cast<std::size_t>(index))) {
    *usage_.cached_tokens += finished.usage.cached_tokens;
  }
  // The engine counts tokens that are not part of the answer, too, such as stop tokens.
  for (TokensAt& at : choice.output_at) {
    at.tokens = -at.tokens;
  }
  add(usage_.output_at, choice.output_at);
  add(usage_.output_at, finished.usage.output_at);
  usage_.times = finished.times;
  choice.text.finish(choice.fresh.parts, finished.reason == FinishReason::kLength);
  const bool ended = choice.text.ended();
  if (finished.reason == FinishReason::kFailed && !ended) {
    return fail({.status = finished.may_retry ? 503 : 500,
                 .message = "the answer failed: " + finished.failure});
  }
  if (finished.reason == FinishReason::kTimeout && !ended) {
    if (asked_.slo_is_first && choice.output_tokens == 0) {
      return refused(make_error(
          ErrorCode::kExhausted,
          "the first token's deadline has passed: earlier requests took longer than predicted"));
    }
    return fail(
        {.status = 504,
         .message = fmt::format("the request's time limit passed after {} tokens of the answer",
                                choice.output_tokens)});
  }
  if (finished.reason == FinishReason::kCancelled && !ended) {
    return fail({.status = 503, .message = "the request was cancelled by the server"});
  }
  if (!std::all_of(finished.embedding.begin(), finished.embedding.end(),
                   [](float value) { return std::isfinite(value); })) {
    return fail({.status = 500,
                 .message = "the embedding holds values that are not finite numbers: the model's "
                            "weights may hold NaN or infinity"});
  }
  choice.end = end_of(choice, finished);
  choice.whole.embedding = finished.embedding;
  flush(index, choice);
}

void Generation::flush() {
  for (std::size_t i = 0; i < choices_.size() && !done_; ++i) {
    flush(static_cast<int>(i), choices_[i]);
  }
}

// Tells nothing of a choice until the likelihoods of its prompt are all there: another choice may
// have found the prompt in the cache while the first still computes them.
void Generation::flush(int index, Choice& choice) {
  const auto number = static_cast<std::size_t>(index);
  const Prompt& prompt = prompt_of(number);
  if (prompt.unscored > 0 && !is_first(number)) {
    return;
  }
  // A step that ends inside a character or a possible stop string makes an event without text,
  // since clients measure the time between tokens by events.
  const bool stepped = std::exchange(choice.stepped, false) || !choice.fresh.parts.empty();
  if (streaming_ && !choice.prompt_told && (stepped || choice.end)) {
    choice.prompt_told = true;
    events_ += writer_->prompt(index, prompt.told, usage_);
  }
  AnswerPiece piece = std::exchange(choice.fresh, {});
  if (!streaming_) {
    keep(std::move(piece), choice.whole.pieces);
  } else if (stepped) {
    const std::string events = writer_->piece(index, piece, usage_);
    unsent_bytes_ += events.size();
    events_ += events;
  }
  if (!choice.end || std::exchange(choice.end_told, true)) {
    return;
  }
  if (streaming_) {
    events_ += writer_->end_choice(index, *choice.end, usage_);
  }
  if (std::all_of(choices_.begin(), choices_.end(),
                  [](const Choice& other) { return other.end_told; })) {
    finish_all();
  }
}

void Generation::finish_all() {
  done_ = true;
  if (streaming_) {
    events_ += writer_->end(usage_);
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

void Generation::abandon() {
  fail({.status = kClientGone, .message = "the client left"});
  if (on_abandoned) {
    on_abandoned();
  }
}

std::string Generation::take_events() {
  unsent_bytes_ = 0;
  return std::exchange(events_, {});
}

std::string Generation::take_body() {
  check(done_ && !failure_, "there is no body of an unfinished answer");
  if (choices_.empty()) {
    return take_events();
  }
  std::vector<AnswerChoice> finished;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    AnswerChoice& whole = choices_[i].whole;
    whole.prompt = prompt_of(i).told;
    whole.end = *choices_[i].end;
    finished.push_back(std::move(whole));
  }
  return writer_->whole(finished, usage_);
}

bool Generation::wants_more(int choice) const {
  return !done_ && !choices_.at(static_cast<std::size_t>(choice)).text.ended();
}

std::string_view Generation::finish_reason(int choice) const {
  const auto& end = choices_.at(static_cast<std::size_t>(choice)).end;
  if (end) {
    return to_string(end->reason);
  }
  return failure_ && failure_->status != kClientGone ? "error" : "abort";
}

}  // namespace protean
