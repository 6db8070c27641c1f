#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "loadtest/connection.h"
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
  TlsOptions tls;
  int max_concurrency = 0;                 // 0 = no limit
  TimeNs timeout_ns = 6 * 3600 * kNsPerS;  // of one request
  TimeNs duration_ns = 0;                  // nothing is sent after that; 0 = no limit
  TimeNs metrics_interval_ns = 0;          // between two readings of metrics; 0 = none
  // Where they are read; empty: at /metrics of the request's server, with its key and headers.
  std::optional<ServerAddress> metrics_server;
  std::string request_id_prefix = "bench";
  // Told of each request that has ended, with its stream's JSON chunks, if set.
  std::function<void(const ReadyRequest&, const RequestRecord&, std::string_view chunks)> on_answer;
};
// The next request, its body made; nothing at the end. Called ahead of the time it is due.
using RequestSource = std::function<std::optional<ReadyRequest>()>;

struct Progress {
  TimeNs elapsed_ns = 0;
  std::int64_t sent = 0;
  std::int64_t in_flight = 0;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  std::int64_t chunks = 0;  // with text
};

struct RunResult {
  std::vector<RequestRecord> records;  // in the order they were sent
  std::vector<ServerSample> server;    // empty where the server tells nothing
  TimeNs clock_start_ns = 0;           // the steady clock at the start, to compare with others
  TimeNs elapsed_ns = 0;               // from the first to the end of the last request
  double cpu_s = 0;                    // of this process
  bool interrupted = false;
  std::string metrics_note;  // why `server` is empty or ends early
};

// Sends requests when they are due and times their streamed answers: one thread, one io_context. A
// byte's time is taken before any byte is parsed, so that a step's tokens for a hundred streams do
// not wait for one another's JSON.
class LoadGenerator {
 public:
  LoadGenerator(GeneratorOptions options, RequestSource source);
  ~LoadGenerator();

  // Blocks until the last answer has ended. Fails where there is nobody to talk to: a name that
  // does not resolve, a CA file that cannot be read. Runs once.
  Result<RunResult> run(const std::function<void(const Progress&)>& on_progress);

  // Cuts what is running and makes run() return. Any thread, at any time.
  void stop();

  // GET `path`, or what went wrong: for what is asked once, before a run.
  static Result<std::string> get(const GeneratorOptions& options, const std::string& path);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean::loadtest
