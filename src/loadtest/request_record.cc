#include "loadtest/request_record.h"

namespace protean::loadtest {
namespace {

double ms_between(TimeNs from_ns, TimeNs to_ns) {
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kNsPerMs);
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kConnectError:
      return "connect";
    case Outcome::kTlsError:
      return "tls";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kHttpStatus:
      return "http_status";
    case Outcome::kNotAStream:
      return "not_a_stream";
    case Outcome::kBrokenStream:
      return "broken_stream";
    case Outcome::kBadJson:
      return "bad_json";
    case Outcome::kErrorEvent:
      return "error_event";
    case Outcome::kEmptyAnswer:
      return "empty_answer";
    case Outcome::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

double ttft_ms(const RequestRecord& record) {
  return ms_between(record.sent_ns, record.first_token_ns);
}

double e2e_ms(const RequestRecord& record) {
  return ms_between(record.sent_ns, record.end_ns);
}

double tpot_ms(const RequestRecord& record) {
  if (record.output_tokens < 2) {
    return -1;
  }
  return ms_between(record.first_token_ns, record.last_token_ns) /
         static_cast<double>(record.output_tokens - 1);
}

double lag_ms(const RequestRecord& record) {
  return ms_between(record.due_ns, record.sent_ns);
}

}  // namespace protean::loadtest
