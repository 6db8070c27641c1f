#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace protean::loadtest {

// How a request ended; the kinds of error are what a person would look into differently.
enum class Outcome {
  kCompleted,
  kConnectError,  // no connection: refused, unreachable, reset before an answer
  kTlsError,      // handshake or certificate
  kTimeout,       // not done within --timeout
  kHttpStatus,    // an answer other than 200
  kNotAStream,    // 200, but no text/event-stream
  kBrokenStream,  // the stream ended early or broke HTTP's or SSE's rules
  kBadJson,       // a chunk that is no JSON object
  kErrorEvent,    // the server reported an error inside the stream
  kEmptyAnswer,   // a whole answer without a single token
  kInterrupted,   // cut by the end of the run; neither completed nor failed
};
inline constexpr int kOutcomes = 11;
std::string_view to_string(Outcome outcome);

inline double seconds(TimeNs time_ns) {
  return static_cast<double>(time_ns) / kNsPerS;
}

// What happened to one request. Times are on the generator's monotonic clock, from the start of
// the run; -1 where a thing did not happen.
struct RequestRecord {
  std::int64_t index = 0;
  TimeNs due_ns = 0;         // when it should have been sent: schedule, or a free place if later
  TimeNs sent_ns = -1;       // the clock of TTFT and E2E starts; connecting is part of them
  TimeNs connected_ns = -1;  // equal to sent_ns where a connection was open already
  TimeNs first_token_ns = -1;
  TimeNs last_token_ns = -1;
  TimeNs end_ns = -1;
  std::int64_t planned_input_tokens = 0;
  std::int64_t planned_output_tokens = 0;
  std::int64_t input_tokens = 0;   // by usage; planned ones where the server tells none
  std::int64_t output_tokens = 0;  // by usage; chunks with text where the server tells none
  std::int64_t cached_tokens = 0;
  std::int64_t chunks = 0;  // with text
  bool has_usage = false;
  Outcome outcome = Outcome::kInterrupted;
  int http_status = 0;
  std::string finish_reason;
  std::string error;
  std::vector<float> itl_ms;  // between chunks with text
};

double ttft_ms(const RequestRecord& record);
double e2e_ms(const RequestRecord& record);
// Mean time of a token after the first; negative where there is none.
double tpot_ms(const RequestRecord& record);
double lag_ms(const RequestRecord& record);  // how late it was sent

}  // namespace protean::loadtest
