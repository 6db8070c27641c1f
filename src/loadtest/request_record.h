#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace protean::loadtest {

// How a request ended. Errors with different causes are different outcomes.
enum class Outcome {
  kCompleted,
  kConnectError,  // no connection: refused, unreachable, reset before an answer
  kTlsError,      // the handshake failed or the certificate is not trusted
  kTimeout,       // not completed within --timeout
  kHttpStatus,    // the status is not 200
  kNotAStream,    // the status is 200, the content type not text/event-stream
  kBrokenStream,  // the stream ended early or violates HTTP or SSE
  kBadJson,       // a chunk is not a JSON object
  kErrorEvent,    // the server reported an error inside the stream
  kEmptyAnswer,   // a complete answer without tokens
  kInterrupted,   // running when the run was stopped; neither completed nor failed
};
inline constexpr int kOutcomes = 11;
std::string_view to_string(Outcome outcome);

inline double seconds(TimeNs time_ns) {
  return static_cast<double>(time_ns) / kNsPerS;
}

// What happened to one request. Times are monotonic, from the start of the run; -1 means that it
// did not happen.
struct RequestRecord {
  std::int64_t index = 0;
  TimeNs due_ns = 0;         // the scheduled time, or when --max-concurrency allowed it if later
  TimeNs sent_ns = -1;       // start of TTFT and E2E, which include connecting
  TimeNs connected_ns = -1;  // sent_ns if an idle connection was used
  TimeNs first_token_ns = -1;
  TimeNs last_token_ns = -1;
  TimeNs end_ns = -1;
  std::int64_t planned_input_tokens = 0;
  std::int64_t planned_output_tokens = 0;
  std::int64_t input_tokens = 0;   // from usage; as planned if the server reports no usage
  std::int64_t output_tokens = 0;  // from usage; chunks with text if the server reports no usage
  std::int64_t cached_tokens = 0;
  std::int64_t chunks = 0;  // chunks with text
  bool has_usage = false;
  Outcome outcome = Outcome::kInterrupted;
  int http_status = 0;
  std::string finish_reason;
  std::string error;
  std::vector<float> itl_ms;  // between chunks with text
};

double ttft_ms(const RequestRecord& record);
double e2e_ms(const RequestRecord& record);
// Returns the mean time of a token after the first; negative if there is none.
double tpot_ms(const RequestRecord& record);
// Returns how late the request was sent.
double lag_ms(const RequestRecord& record);

}  // namespace protean::loadtest
