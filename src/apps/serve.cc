#include <csignal>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "apps/options.h"
#include "apps/replica_loader.h"
#include "apps/served_models.h"
#include "apps/version.h"
#include "base/log_output.h"
#include "host/descriptor_limit.h"
#include "host/machine.h"
#include "host/signal_watcher.h"
#include "host/systemd_notify.h"
#include "replica/replica.h"
#include "server/page/page_assets.h"
#include "server/server.h"

namespace protean {
namespace {

struct ServeOptions {
  ServerOptions server;
  ModelSetting model;               // if there are several, what they have in common
  std::vector<std::string> models;  // NAME=MODEL
  std::string models_file;
  std::string move_models = "off";
  int move_window_s = 120;
  int shutdown_timeout_s = 30;
  int sse_ping_interval_s = 15;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string admin_key;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string max_body_size = "16MiB";
  std::string max_inflight_body_bytes = "256MiB";
};

// Checks and converts the options that CLI11 cannot.
Status complete(ServeOptions& options) {
  ServerOptions& server = options.server;
  server.drain_timeout_ms = options.shutdown_timeout_s * 1000;
  server.http.sse_ping_ms = options.sse_ping_interval_s * 1000;
  server.http.max_connections = clip_connections(server.http.max_connections);
  auto keys = collect_keys(std::move(options.api_keys), options.api_key_file);
  if (!keys.ok()) {
    return keys.error();
  }
  server.keys = ApiKeys(*keys);
  if (!options.admin_key.empty()) {
    const auto admin_keys = collect_keys({options.admin_key}, "");
    if (!admin_keys.ok()) {
      return admin_keys.error();
    }
    server.admin.keys = ApiKeys(*admin_keys);
  }
  const auto level = log::parse_level(options.log_level);
  if (!level.ok()) {
    return level.error();
  }
  log::set_level(*level);
  log::set_format(options.log_format == "json" ? log::Format::kJson : log::Format::kText);
  const auto body = parse_bytes(options.max_body_size);
  const auto bodies = parse_bytes(options.max_inflight_body_bytes);
  if (!body.ok() || !bodies.ok()) {
    return body.ok() ? bodies.error() : body.error();
  }
  if (*body < kKiB || *bodies < *body) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--max-body-size {} must be at least 1KiB and at most "
                      "--max-inflight-body-bytes {}",
                      options.max_body_size, options.max_inflight_body_bytes);
  }
  server.http.max_body_bytes = *body;
  server.http.max_inflight_body_bytes = *bodies;
  return {};
}

// Returns the models to serve: MODEL, or those of --model and --models.
Result<std::vector<ModelSetting>> models_of(const ServeOptions& options) {
  const bool several = !options.models.empty() || !options.models_file.empty();
  const std::string& one = options.model.model.model;
  if (several && !one.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "protean serve takes MODEL or --model and --models, not both: MODEL is {}",
                      one);
  }
  if (several) {
    return model_settings(options.model, options.models, options.models_file);
  }
  if (one.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "protean serve needs MODEL, --model NAME=MODEL or --models FILE: see protean "
                      "serve --help");
  }
  return std::vector{options.model};
}

// Returns the same with the intents that --intent gives models by name, which are common to none.
Result<std::vector<ModelSetting>> settings_of(ServeOptions& options) {
  const auto named = take_named_intents(options.model);
  if (!named.ok()) {
    return named.error();
  }
  auto settings = models_of(options);
  if (settings.ok()) {
    if (const Status known = name_intents(*named, *settings); !known.ok()) {
      return known.error();
    }
  }
  return settings;
}

Environment real_environment() {
  auto random = std::make_shared<std::mt19937_64>(std::random_device{}());
  return {.clock = steady_now_ns,
          .unix_time_s =
              [] {
                return std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                    .count();
              },
          .random = [random] { return (*random)(); }};
}

// Returns the address that a browser on this machine opens for a port of `host`.
std::string browser_address(const ServerOptions& options, const std::string& host, int port) {
  const bool any = host == "0.0.0.0" || host == "::";
  const bool v6 = host.find(':') != std::string::npos && !any;
  return fmt::format("{}://{}{}{}:{}", options.tls.enabled() ? "https" : "http", v6 ? "[" : "",
                     any ? "localhost" : host, v6 ? "]" : "", port);
}

void log_ready(const ServerOptions& options, const Server& server) {
  log::info("listening on {}://{}:{}", options.tls.enabled() ? "https" : "http", options.host,
            server.port());
  if (!page_assets().empty()) {
    log::info("open {}/ in a browser to chat",
              browser_address(options, options.host, server.port()));
  }
}

void log_operators_port(const ServerOptions& options, int port) {
  log::info("operators' port: {}:{}", options.admin.host, port);
  if (!page_assets().empty()) {
    log::info("open {}/dashboard in a browser to see and steer its form",
              browser_address(options, options.admin.host, port));
  }
}

// Loads the models one after the other. Errors name all that cannot be loaded.
Result<std::vector<std::unique_ptr<Replicas>>> load(std::vector<OpenModel>& models,
                                                    Server& server) {
  std::vector<std::unique_ptr<Replicas>> all;
  std::vector<Error> errors;
  for (std::size_t i = 0; i < models.size(); ++i) {
    learn_costs(models[i]);
    auto replicas = start_replicas(models[i], *server.sink(i));
    if (replicas.ok()) {
      all.push_back(*std::move(replicas));
    } else {
      const Error& error = replicas.error();
      const std::string& name = models[i].hosted.model.names.front();
      errors.push_back(models.size() == 1
                           ? error
                           : Error{error.code, fmt::format("{}: {}", name, error.message)});
    }
  }
  if (!errors.empty()) {
    return error_of_models(errors, models.size());
  }
  return all;
}

std::string names_of(const std::vector<OpenModel>& models) {
  std::string names;
  for (const OpenModel& model : models) {
    names += (names.empty() ? "" : ", ") + model.hosted.model.names.front();
  }
  return names;
}

// Only a policy or an operator changes the form.
OpenOptions opening_of(const ServeOptions& options) {
  return {.may_morph = options.server.admin.port >= 0,
          .may_move = options.move_models == "auto",
          .turns = std::make_shared<SharedTurns>(steady_now_ns),
          .memory = std::make_shared<SharedMemory>()};
}

ReplicaLoader::Defaults defaults_of(const ServeOptions& options, const OpenOptions& opening) {
  return {.setting = options.model,
          .may_morph = opening.may_morph,
          .move_window_ns = opening.may_move ? options.move_window_s * kNsPerS : 0,
          .turns = opening.turns,
          .memory = opening.memory};
}

int run_serve(ServeOptions& options) {
  if (Status ready = complete(options); !ready.ok()) {
    return exit_with(ready.error());
  }
  auto settings = settings_of(options);
  if (!settings.ok()) {
    return exit_with(settings.error());
  }
  const OpenOptions opening = opening_of(options);
  auto models = open_models(*std::move(settings), opening);
  if (!models.ok()) {
    return exit_with(models.error());
  }
  options.server.heartbeat = {watchdog_interval_ms(), [] { notify_systemd("WATCHDOG=1"); }};
  std::vector<HostedModel> hosted;
  for (const OpenModel& model : *models) {
    hosted.push_back(model.hosted);
  }
  Server server(options.server, std::move(hosted), kVersion, real_environment());
  // Constructed before any other thread. The first signal drains, a second one ends answers at
  // once. Before and after the server serves there are none to wait for, and what loads or unloads
  // a model may hang.
  std::atomic<bool> serves = false;
  auto background = std::make_unique<log::Background>();
  const SignalWatcher watcher({SIGINT, SIGTERM, SIGHUP}, [&](int signal) {
    if (signal == SIGHUP) {
      if (options.server.tls.enabled()) {
        server.reload_tls();
      } else {
        log::info("SIGHUP: there is no TLS certificate to read again");
      }
      return;
    }
    if (!serves) {
      log::info("stopped while models are loaded or unloaded");
      background.reset();  // writes its pending lines
      std::_Exit(0);
    }
    notify_systemd("STOPPING=1");
    server.stop();
  });
  // The port is opened before a model is loaded, so that a port in use is reported at once.
  if (Status listening = server.listen(); !listening.ok()) {
    return exit_with(listening.error());
  }
  std::thread io([&server] { server.run(); });
  auto replicas = load(*models, server);
  std::unique_ptr<ReplicaLoader> loader;
  Error failure;  // if there is no loader
  if (replicas.ok()) {
    serves = true;
    loader = std::make_unique<ReplicaLoader>(*models, *std::move(replicas), server,
                                             defaults_of(options, opening));
    server.set_ready(loader.get());
    notify_systemd("READY=1\nSTATUS=serving " + names_of(*models));
    log_ready(options.server, server);
  } else {
    failure = replicas.error();
    server.stop();
  }
  if (server.admin_port() > 0) {
    log_operators_port(options.server, server.admin_port());
  }
  io.join();
  serves = false;
  return loader != nullptr ? 0 : exit_with(failure);
}

void add_network_options(CLI::App& app, ServeOptions& options) {
  ServerOptions& server = options.server;
  app.option_defaults()->group("Network");
  app.add_option("--host", server.host, "Listen on this address")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--port", server.port, "Listen on this port; 0 is any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  app.add_option("--ssl-certfile", server.tls.certfile,
                 "PEM file with the certificate and its chain: serve https. SIGHUP reads it again")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--ssl-keyfile", server.tls.keyfile, "PEM file with the certificate's key")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--max-connections", server.http.max_connections,
                 "Most open connections; if there are more, a new one replaces the one that has "
                 "been idle longest, otherwise the slowest")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-body-size", options.max_body_size, "Longest request body, such as 16MiB")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--max-inflight-body-bytes", options.max_inflight_body_bytes,
                 "Bound for all request bodies being received together; what exceeds it is "
                 "answered 503")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--sse-ping-interval", options.sse_ping_interval_s,
                 "Seconds after which a silent stream gets a comment, so that proxies keep it "
                 "open; 0 is never")
      ->check(whole_number(0, 86400))
      ->capture_default_str();
}

void add_access_options(CLI::App& app, ServeOptions& options) {
  ServerOptions& server = options.server;
  app.option_defaults()->group("Access");
  app.add_option("--api-key", options.api_keys, "Key that clients must send. May be repeated")
      ->type_name("KEY")
      ->allow_extra_args(false);
  app.add_option("--api-key-file", options.api_key_file,
                 "File with such keys, one a line; unlike --api-key it keeps them out of process "
                 "lists")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--allow-origin", server.allow_origins,
                 "Origin of web pages whose scripts may call this server, or *. May be repeated")
      ->type_name("ORIGIN")
      ->allow_extra_args(false);
  app.add_option("--allowed-hosts", server.allowed_hosts,
                 "Host names that requests may ask for if there is no --api-key, or *; addresses, "
                 "localhost and this machine's own name are always allowed")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);
}

void add_several_options(CLI::App& app, ServeOptions& options) {
  app.option_defaults()->group("Several models");
  app.add_option("--model", options.models,
                 "Serve this model under this name. May be repeated; flags hold for all of them")
      ->type_name("NAME=MODEL")
      ->allow_extra_args(false);
  app.add_option("--models", options.models_file,
                 "TOML file with a table for each model, named like it: model = \"MODEL\", and "
                 "the flags of groups Model to Answers that differ, such as dtype = \"w8\"")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--move-models", options.move_models,
                 "Bind models that have an --intent to the CPUs of their devices, and move one to "
                 "other devices or another configuration when that is predicted to pay")
      ->check(one_of({"auto", "off"}))
      ->capture_default_str();
  app.add_option("--move-window", options.move_window_s,
                 "Seconds of load that --move-models looks at, and for which the load is expected "
                 "to last")
      ->check(whole_number(2, 86400))
      ->capture_default_str();
}

void add_operation_options(CLI::App& app, ServeOptions& options) {
  ServerOptions& server = options.server;
  app.option_defaults()->group("Operation");
  app.add_option("--shutdown-timeout", options.shutdown_timeout_s,
                 "Seconds that running answers get after SIGTERM")
      ->check(whole_number(0, 86400))
      ->capture_default_str();
  app.add_option("--admin-port", server.admin.port,
                 "Port for operators (form, drain, log level, health, metrics); 0 is any free one "
                 "(default none)")
      ->check(whole_number(0, 65535));
  app.add_option("--admin-host", server.admin.host, "Address of the operators' port")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--admin-key", options.admin_key,
                 "Key for the operators' port; without one it must listen on a loopback address")
      ->type_name("KEY");
  app.add_option("--otlp-endpoint", server.otlp_endpoint,
                 "OpenTelemetry collector that gets a trace of each request, such as "
                 "http://127.0.0.1:4318")
      ->type_name("URL");
  app.add_option("--scaler-url", server.scaler_url,
                 "URL that gets a POST of one JSON object when a model's load asks for another "
                 "number of replicas (see --scaler-after)")
      ->type_name("URL");
  app.add_option("--log-level", options.log_level, "Least severe messages to log")
      ->check(one_of({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", options.log_format, "Write log lines as text or as JSON")
      ->check(one_of({"text", "json"}))
      ->capture_default_str();
}

}  // namespace

void add_serve(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "serve", "Serve models over the OpenAI, Anthropic and Ollama APIs until SIGTERM or Ctrl-C");
  auto options = std::make_shared<ServeOptions>();
  add_network_options(*app, *options);
  add_access_options(*app, *options);
  add_several_options(*app, *options);
  add_model_setting(*app, options->model);
  CLI::Option* intent = app->get_option("--intent");
  intent->join()->type_name("[NAME=]INTENT");
  intent->description(intent->get_description() +
                      ". NAME= makes it that of one of several models. May be repeated");
  add_operation_options(*app, *options);
  app->footer(
      "Example: protean serve MODEL --port 8000\n"
      "Then: curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "  -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 50, \"stream\": true}'");
  app->callback([options, &exit_code] { exit_code = run_serve(*options); });
}

}  // namespace protean
