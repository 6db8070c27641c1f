#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "http/client_connection.h"
#include "loadtest/endpoint.h"
#include "loadtest/request_record.h"
#include "loadtest/server_metrics.h"

namespace protean::loadtest {

struct ReadyRequest {
  PlannedRequest planned;
  std::string body;
};

struct GeneratorOptions {
  RequestTemplate request;
  ClientTls tls;
  int max_concurrency = 0;                 // 0 = no limit
  TimeNs timeout_ns = 6 * 3600 * kNsPerS;  // from sending a request to the end of its answer
  TimeNs duration_ns = 0;                  // nothing is sent after this time; 0 = no limit
  TimeNs metrics_interval_ns = 0;          // between two reads of the server's metrics; 0 = none
  // The server of the metrics. If empty, /metrics of `request`'s server, with its key and headers.
  std::optional<ServerAddress> metrics_server;
  std::string request_id_prefix = "bench";
  // If set, called once for each ended request. `chunks` are the JSON chunks of its stream,
  // separated by commas.
  std::function<void(const ReadyRequest&, const RequestRecord&, std::string_view chunks)> on_answer;
};
// Returns the next request, or nothing at the end. Called before the request is due.
using RequestSource = std::function<std::optional<ReadyRequest>()>;

struct Progress {
  TimeNs elapsed_ns = 0;
  std::int64_t sent = 0;
  std::int64_t in_flight = 0;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  std::int64_t chunks = 0;  // chunks with text
};

struct RunResult {
  std::vector<RequestRecord> records;  // in the order they were sent
  std::vector<ServerSample> server;    // empty if the server has no metrics
  TimeNs clock_start_ns = 0;           // steady clock at 0 s of the run, to align it with others
  TimeNs elapsed_ns = 0;               // until the end of the last request
  double cpu_s = 0;                    // CPU time of this process during the run
  bool interrupted = false;
  std::string metrics_note;  // why `server` is empty or ends early
};

// Sends requests when they are due and times their streamed answers on one thread. Records when
// bytes arrived before it parses any of them: otherwise parsing the tokens of a hundred streams,
// which arrive together after a step, would count as latency of the last stream.
class LoadGenerator {
 public:
  LoadGenerator(GeneratorOptions options, RequestSource source);
  ~LoadGenerator();

  // Blocks until the last answer has ended. Fails if the server's name does not resolve or the CA
  // file cannot be read; a request that fails is a record. May be called once.
  Result<RunResult> run(const std::function<void(const Progress&)>& on_progress);

  // Interrupts running requests and makes run() return. May be called from any thread.
  void stop();

  // Sends GET `path` to the server and returns the body of a 200 answer. Blocks.
  static Result<std::string> get(const GeneratorOptions& options, const std::string& path);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean::loadtest
