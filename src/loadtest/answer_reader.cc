#include "loadtest/answer_reader.h"

#include <algorithm>
#include <utility>

#include "loadtest/answer_chunk.h"

namespace protean::loadtest {
namespace {

constexpr std::size_t kMaxErrorBody = std::size_t{16} * 1024;

}  // namespace

AnswerReader::AnswerReader(RequestRecord& record, std::string* transcript)
    : record_(record),
      transcript_(transcript),
      response_([this](std::string_view bytes) { on_body(bytes); }) {}

bool AnswerReader::feed(std::string_view bytes, TimeNs now_ns) {
  if (over_) {
    return false;
  }
  now_ns_ = now_ns;
  const Status read = response_.feed(bytes);
  record_.http_status = response_.status();
  if (!read.ok()) {
    fail(Outcome::kBrokenStream, read.error().message, now_ns);
  } else if (response_.done()) {
    conclude();
  }
  return !over_;
}

void AnswerReader::closed(TimeNs now_ns) {
  now_ns_ = now_ns;
  if (!response_.started()) {
    fail(Outcome::kConnectError, "the server closed the connection without an answer", now_ns);
    return;
  }
  const Status ended = over_ ? Status() : response_.finish();
  if (!ended.ok() && !done_event_) {  // [DONE] is the end of the answer, even if HTTP's is missing
    fail(Outcome::kBrokenStream, ended.error().message, now_ns);
    return;
  }
  conclude();
}

void AnswerReader::fail(Outcome outcome, std::string why, TimeNs now_ns) {
  if (over_) {
    return;
  }
  over_ = true;
  record_.outcome = outcome;
  record_.error = std::move(why);
  record_.end_ns = now_ns;
}

void AnswerReader::on_body(std::string_view bytes) {
  if (over_) {
    return;
  }
  if (response_.status() != 200 || response_.content_type() != "text/event-stream") {
    error_body_ += bytes.substr(0, kMaxErrorBody - std::min(kMaxErrorBody, error_body_.size()));
    return;
  }
  if (!events_.feed(bytes, [this](const SseEvent& event) { on_event(event); })) {
    fail(Outcome::kBrokenStream, "an event is larger than 16 MiB", now_ns_);
  }
}

void AnswerReader::on_event(const SseEvent& event) {
  if (over_ || done_event_) {
    return;
  }
  if (event.data == "[DONE]") {
    done_event_ = true;
    record_.end_ns = now_ns_;
    return;
  }
  const auto chunk = parse_answer_chunk(event.data);
  if (!chunk.ok()) {
    fail(Outcome::kBadJson, chunk.error().message, now_ns_);
    return;
  }
  if (transcript_ != nullptr) {
    transcript_->append(transcript_->empty() ? "" : ",").append(event.data);
  }
  if (!chunk->error.empty()) {
    fail(Outcome::kErrorEvent, chunk->error, now_ns_);
    return;
  }
  if (chunk->usage) {
    record_.has_usage = true;
    record_.input_tokens = chunk->usage->prompt_tokens;
    record_.output_tokens = chunk->usage->completion_tokens;
    record_.cached_tokens = chunk->usage->cached_tokens;
  }
  if (chunk->has_choice && first_choice_ns_ < 0) {
    first_choice_ns_ = now_ns_;
  }
  if (chunk->has_text) {
    on_token_chunk();
  }
  if (!chunk->finish_reason.empty()) {
    record_.finish_reason = chunk->finish_reason;
  }
}

void AnswerReader::on_token_chunk() {
  ++record_.chunks;
  if (record_.first_token_ns < 0) {
    record_.first_token_ns = now_ns_;
  } else {
    record_.itl_ms.push_back(static_cast<float>(now_ns_ - record_.last_token_ns) /
                             static_cast<float>(kNsPerMs));
  }
  record_.last_token_ns = now_ns_;
}

// Ends the record of a complete HTTP response: as completed, or as the failure that it shows.
void AnswerReader::conclude() {
  if (over_) {
    return;
  }
  if (response_.status() != 200) {
    fail(Outcome::kHttpStatus, error_message_of(error_body_), now_ns_);
    return;
  }
  if (response_.content_type() != "text/event-stream") {
    fail(Outcome::kNotAStream,
         "the content type is " +
             (response_.content_type().empty() ? "missing" : response_.content_type()) +
             ", not text/event-stream",
         now_ns_);
    return;
  }
  if (!done_event_ && record_.finish_reason.empty()) {
    fail(Outcome::kBrokenStream, "the stream ended without [DONE] and without a finish_reason",
         now_ns_);
    return;
  }
  if (!record_.has_usage) {
    record_.input_tokens = record_.planned_input_tokens;
    record_.output_tokens = record_.chunks;
  }
  // Special tokens have no text. Only the time of the chunk that held them is known.
  if (record_.first_token_ns < 0 && record_.output_tokens > 0 && first_choice_ns_ >= 0) {
    record_.first_token_ns = first_choice_ns_;
    record_.last_token_ns = now_ns_;
  }
  if (record_.first_token_ns < 0) {
    fail(Outcome::kEmptyAnswer, "the answer is complete but has no token", now_ns_);
    return;
  }
  over_ = true;
  record_.outcome = Outcome::kCompleted;
  record_.end_ns = done_event_ ? record_.end_ns : now_ns_;
}

}  // namespace protean::loadtest
