#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "base/units.h"
#include "ports/event.h"
#include "ports/token_sink.h"
#include "server/metrics.h"
#include "server/served_model.h"
#include "server/service.h"

namespace protean {

// What one connection may cost.
struct HttpLimits {
  std::int64_t max_header_bytes = 16 * kKiB;
  std::int64_t max_body_bytes = 16 * kMiB;
  std::int64_t max_unsent_bytes = kMiB;  // of a stream whose client does not read; then it is cut
  int max_connections = 4096;            // more wait in the listen queue
  int header_timeout_ms = 10'000;        // from a request's first byte
  int body_timeout_ms = 60'000;
  int idle_timeout_ms = 75'000;  // between requests
  int write_timeout_ms = 60'000;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one, port() says which
  int drain_timeout_ms = 30'000;
  HttpLimits http;
  ServiceLimits service;
};

// The HTTP server: run() serves on the calling thread, which is the io thread. Starts in the state
// "loading", in which it listens but answers 503. Must outlive the engine that emits into it.
class Server final : public TokenSink {
 public:
  Server(const ServerOptions& options, ServedModel model, MetricsLabels labels,
         Environment environment, BoundedQueue<Event>& inbox);
  ~Server() override;

  Status listen();
  int port() const;  // after listen()
  void run();        // after listen(); returns when stop() is done

  // From any thread, but not from a signal handler.
  void set_ready();
  // Refuses new work with 503 and closes the port and what has sent half a request's body, lets
  // running answers finish for drain_timeout_ms, then ends them with an error. A second call ends
  // them at once.
  void stop();

  // From the engine's thread: hands the batch to the io thread and returns.
  void emit(OutputBatch batch) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean
