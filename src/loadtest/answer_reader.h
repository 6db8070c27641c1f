#pragma once

#include <string>
#include <string_view>

#include "http/response_reader.h"
#include "loadtest/request_record.h"
#include "loadtest/sse_parser.h"

namespace protean::loadtest {

// Turns the bytes of one streamed answer and the times they arrived into a RequestRecord. Does no
// I/O, so that tests can feed it any bytes.
class AnswerReader {
 public:
  // Appends the JSON chunks of the stream, separated by commas, to `transcript` unless it is null.
  explicit AnswerReader(RequestRecord& record, std::string* transcript = nullptr);

  // Reads bytes that arrived at `now_ns`. Returns false once the answer has ended or failed.
  bool feed(std::string_view bytes, TimeNs now_ns);
  // Ends the answer because the peer closed the connection.
  void closed(TimeNs now_ns);
  // Fails the answer for another reason, unless it has ended.
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
  TimeNs first_choice_ns_ = -1;  // taken as the first token's time if the answer has no text
  bool done_event_ = false;      // [DONE] was received
  bool over_ = false;
};

}  // namespace protean::loadtest
