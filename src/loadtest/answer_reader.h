#pragma once

#include <string>
#include <string_view>

#include "loadtest/request_record.h"
#include "loadtest/response_reader.h"
#include "loadtest/sse_parser.h"

namespace protean::loadtest {

// Turns the bytes of one streamed answer, and when they came, into a RequestRecord. Knows no
// socket: tests feed it what no server would send.
class AnswerReader {
 public:
  // The transcript, if any, gets the stream's JSON chunks as they came, with commas between.
  explicit AnswerReader(RequestRecord& record, std::string* transcript = nullptr);

  // Bytes that were there at `now_ns`. False once the answer is over, well or not.
  bool feed(std::string_view bytes, TimeNs now_ns);
  // The peer closed the connection.
  void closed(TimeNs now_ns);
  // Ends it for another reason, unless it has ended.
  void fail(Outcome outcome, std::string why, TimeNs now_ns);

  bool over() const { return over_; }
  bool started() const { return response_.started(); }
  bool connection_reusable() const { return response_.done() && response_.keep_alive(); }

 private:
  void on_body(std::string_view bytes);
  void on_event(const SseEvent& event);
  void on_token_chunk();
  void conclude();

  RequestRecord& record_;
  std::string* const transcript_;
  ResponseReader response_;
  SseParser events_;
  std::string error_body_;
  TimeNs now_ns_ = 0;
  TimeNs first_choice_ns_ = -1;  // stands in for the first token of an answer without any text
  bool done_event_ = false;      // [DONE]
  bool over_ = false;
};

}  // namespace protean::loadtest
