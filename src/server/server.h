#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "http/limits.h"
#include "http/tls.h"
#include "ports/event.h"
#include "ports/token_sink.h"
#include "server/answer/served_model.h"
#include "server/operators/metrics.h"
#include "server/service.h"

namespace protean {

// The port for operators. Off unless it has a port.
struct AdminOptions {
  std::string host = "127.0.0.1";
  int port = -1;  // 0: any free one
  ApiKeys keys;   // none: the host must be a loopback address
};

// A sign of life from the io thread, for who watches over the process.
struct Heartbeat {
  int interval_ms = 0;  // 0: none
  std::function<void()> beat;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one, port() says which
  int drain_timeout_ms = 30'000;
  std::vector<std::string> allow_origins;  // of web pages; "*": all
  // Host names that requests may ask for where no key is needed; "*": any. Addresses, localhost,
  // `host` and this machine's own name always may.
  std::vector<std::string> allowed_hosts;
  TlsOptions tls;                          // on both ports
  AdminOptions admin;
  std::string otlp_endpoint;  // of a collector of traces; empty: none are sent
  Heartbeat heartbeat;
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
  int admin_port() const;
  void run();  // after listen(); returns when stop() is done

  // From any thread, but not from a signal handler.
  void set_ready();
  // Refuses new work with 503, on new connections too, and hangs up where half a request's body
  // has come; lets running answers finish for drain_timeout_ms, then ends them with an error. A
  // second call ends them at once.
  void stop();
  // Reads the TLS files anew, on the calling thread, for connections to come. Where they are
  // unusable it says so in the log and the former ones stay.
  void reload_tls();

  // From the engine's thread: hands the batch to the io thread and returns.
  void emit(OutputBatch batch) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean
