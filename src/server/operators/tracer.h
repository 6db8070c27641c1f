#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/background_queue.h"
#include "base/result.h"
#include "server/answer/answer_record.h"

namespace protean {

// The address of an OTLP/HTTP collector of traces.
struct OtlpEndpoint {
  std::string host;
  std::string port;
  std::string path;
};
// Parses a URL. One without a path, such as "http://host:4318", gets the path /v1/traces.
Result<OtlpEndpoint> parse_otlp_endpoint(const std::string& url);

// The identity of a trace in the header traceparent (W3C Trace Context).
struct TraceContext {
  std::string trace_id;   // 32 hex digits
  std::string parent_id;  // 16 hex digits; empty for the first span of a trace
  bool sampled = true;
};
// Parses traceparent. If it is absent or malformed, begins a new trace with a random id.
TraceContext trace_context(std::string_view text, const std::function<std::uint64_t()>& random);

// Sends a span for each answered request, with child spans for queue, prefill and decode, to a
// collector: OTLP in JSON, in batches, from a thread of its own. If the collector is slow or away,
// spans are dropped and counted; requests are not affected.
class Tracer {
 public:
  struct Setting {
    OtlpEndpoint endpoint;
    std::string version;
    std::int64_t unix_offset_ns = 0;  // Unix time less the engine's clock
    std::function<std::uint64_t()> random;
  };
  explicit Tracer(Setting setting);

  void add(const AnswerRecord& record);  // called from one thread
  std::uint64_t dropped() const { return spans_.dropped(); }

 private:
  const Setting setting_;
  BackgroundQueue<std::string> spans_;  // JSON; an item holds the spans of one answer
};

// Returns the spans of an answer as JSON objects separated by commas.
std::string spans_json(const AnswerRecord& record, const TraceContext& trace,
                       std::int64_t unix_offset_ns, const std::function<std::uint64_t()>& random);

}  // namespace protean
