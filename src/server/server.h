#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "http/limits.h"
#include "http/tls.h"
#include "ports/event.h"
#include "ports/step_turn.h"
#include "ports/token_sink.h"
#include "server/answer/served_model.h"
#include "server/residence.h"
#include "server/service.h"

namespace protean {

// The operators' port. There is none unless `port` is set.
struct AdminOptions {
  std::string host = "127.0.0.1";
  int port = -1;  // 0: any free one
  ApiKeys keys;   // without keys the host must be a loopback address
};

// A function that the io thread calls regularly, for a watchdog.
struct Heartbeat {
  int interval_ms = 0;  // 0: none
  std::function<void()> beat;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one, which port() returns
  int drain_timeout_ms = 30'000;
  std::vector<std::string> allow_origins;  // origins of web pages that may call; "*": all
  // Host names that requests may name if no key is needed; "*": any. Addresses, localhost, `host`
  // and this machine's own name are always allowed.
  std::vector<std::string> allowed_hosts;
  TlsOptions tls;  // on both ports
  AdminOptions admin;
  std::string otlp_endpoint;  // address of a collector of traces; empty: traces are not sent
  std::string scaler_url;     // gets the number of replicas wanted; empty: nothing does
  Heartbeat heartbeat;
  HttpLimits http;
  ApiKeys keys;  // keys of the public port; empty: none is needed
};

// A model of a server: how clients see it, how many requests it takes, and the inbox of its
// engines. What it refers to outlives the server, or is kept by `keeps`.
struct HostedModel {
  ServedModel model;
  ServiceLimits limits;
  BoundedQueue<Event>& inbox;
  std::shared_ptr<const void> keeps;  // what the model refers to, inbox included; may be null
  std::string intent = {};            // that chose its configuration; empty: none did
  IntentPlan plan = {};               // for this intent
  std::shared_ptr<TimeShare> share = nullptr;  // null: it has no priority
  ListConfigurations configurations = {};      // empty: none are kept
  std::string no_intent = {};  // why no intent can choose its configuration; empty: one can
};

// What takes a model's place: the same model in another configuration.
struct Replacement {
  std::shared_ptr<TokenSink> host;  // of Server::host()
  bool loaded = false;              // false: it is loaded when the former one is removed
};

// The HTTP server. run() serves on the calling thread, which becomes the io thread. Begins in the
// state "loading", in which it listens but answers 503. Outlives the engines that emit into it.
class Server {
 public:
  // `models` has at least one. `version` is the program's.
  Server(const ServerOptions& options, std::vector<HostedModel> models, const std::string& version,
         Environment environment);
  ~Server();

  Status listen();
  int port() const;  // valid after listen()
  int admin_port() const;
  void run();  // called after listen(); returns when stop() is done

  // The following may be called from any thread, but not from a signal handler.
  // The models are loaded. With a loader, which outlives run(), models may sleep.
  void set_ready(ModelLoader* loader = nullptr);
  // Returns a number that grows when requests come; nothing while an engine has some.
  std::optional<std::uint64_t> quiet() const;
  // The loader has unloaded a model, or loaded it, which may have failed: then requests end that
  // were accepted before it was unloaded.
  void fell_asleep(std::size_t model);
  void woke(std::size_t model, Status loaded, std::vector<Finished> ended = {});
  // How long loading a model took last; 0 if it was never loaded.
  void loaded(std::size_t model, double seconds);
  // A further model is being deployed: its engines may emit into what host() returns. With
  // deployed() it serves, or sleeps if it is not loaded; failed() says why it does not.
  std::shared_ptr<TokenSink> host(HostedModel model);
  void deploying(std::string name, const JobProgress& progress);
  void deployed(std::shared_ptr<TokenSink> host, bool loaded);
  void failed(std::string name, Error error);
  // Tells how far the loader is in serving a model for another intent. planned(): it has chosen a
  // configuration. kept(): the model has it already. changes(): the way to it, and changing(): how
  // far that is. succeeded(): other engines have taken the model's requests over. replaced(): the
  // model is opened in it. not_replaced(): it fails.
  void planned(std::size_t model, IntentPlan plan);
  void changes(std::size_t model, ConfigurationChange how);
  void changing(std::size_t model, const JobProgress& progress);
  void kept(std::size_t model);
  // `must_leave`: a device on which the model serves from now on has failed.
  void succeeded(std::size_t model, ServedModel as, bool must_leave = false);
  void replaced(std::size_t model, Replacement by);
  void not_replaced(std::size_t model, Error error);
  // How far the loader is in profiling a model, and that it has ended.
  void profiling(std::size_t model, const ProfileProgress& progress);
  void profiled(std::size_t model, Status how);
  // Refuses new requests with 503 and closes connections that are receiving a body. Lets running
  // answers finish for drain_timeout_ms, then ends them with an error. If an operator has begun
  // that before, goes on with it. A second call ends them at once.
  void stop();
  // Reads the TLS files again, on the calling thread, for new connections. If they are unusable,
  // logs that and keeps the former ones.
  void reload_tls();

  // Returns where the engines of a model emit: from their thread, which it does not hold up.
  std::shared_ptr<TokenSink> sink(std::size_t model);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean
