#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/background_queue.h"
#include "base/result.h"
#include "server/answer/answer_record.h"

namespace protean {

// Where an OTLP/HTTP collector takes traces.
struct OtlpEndpoint {
  std::string host;
  std::string port;
  std::string path;
};
// "http://host:4318" means its /v1/traces; another path is taken as it is.
Result<OtlpEndpoint> parse_otlp_endpoint(const std::string& url);

// The identity of a trace as traceparent carries it (W3C Trace Context).
struct TraceContext {
  std::string trace_id;   // 32 hex digits
  std::string parent_id;  // 16, or empty: this is the trace's first span
  bool sampled = true;
};
// What is not well-formed is as good as absent: a new trace with the given random id.
TraceContext trace_context(std::string_view text, const std::function<std::uint64_t()>& random);

// Sends a span per answered request, with its waiting, prefill and decode beneath, to a collector:
// OTLP in its JSON encoding, in batches, from a thread of its own. A collector that is slow or away
// costs spans, which are counted, and nothing else.
class Tracer {
 public:
  struct Setting {
    OtlpEndpoint endpoint;
    std::string version;
    std::int64_t unix_offset_ns = 0;  // what to add to times of the engine's clock
    std::function<std::uint64_t()> random;
  };
  explicit Tracer(Setting setting);

  void add(const AnswerRecord& record);  // from one thread
  std::uint64_t dropped() const { return spans_.dropped(); }

 private:
  const Setting setting_;
  BackgroundQueue<std::string> spans_;  // each the JSON of an answer's spans
};

// The JSON objects of an answer's spans, comma separated.
std::string spans_json(const AnswerRecord& record, const TraceContext& trace,
                       std::int64_t unix_offset_ns, const std::function<std::uint64_t()>& random);

}  // namespace protean
