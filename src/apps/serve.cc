#include <csignal>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "apps/morph_options.h"
#include "apps/options.h"
#include "apps/serve_intent.h"
#include "apps/version.h"
#include "base/log_output.h"
#include "cost/memory.h"
#include "host/descriptor_limit.h"
#include "host/machine.h"
#include "host/signal_watcher.h"
#include "host/systemd_notify.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "replica/replica.h"
#include "replica/sizing.h"
#include "replica/step_costs.h"
#include "server/page/page_assets.h"
#include "server/server.h"

namespace protean {
namespace {

// How replicas share requests, and when they become groups.
struct FleetOptions {
  std::string router = "first-token";
  std::string scale = "off";
  std::string drop = "off";
};

struct ServeOptions {
  ModelOptions model;
  MorphOptions morph;
  ServerOptions server;
  FleetOptions fleet;
  std::string intent;  // empty: the other options say how to serve
  std::vector<std::string> served_names;
  int max_queued = 1024;
  int shutdown_timeout_s = 30;
  int sse_ping_interval_s = 15;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string admin_key;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string max_body_size = "16MiB";
  std::string max_inflight_body_bytes = "256MiB";
  std::string grammar_memory = "256MiB";
  std::size_t grammar_bytes = 0;  // grammar_memory, once checked
  std::string tool_call_parser = "auto";
  std::string pooling = "mean";
};

constexpr std::int64_t kLeastGrammarBytes = std::int64_t{16} << 20;

// Refuses policies that could never form a group.
Status check_groups(const ServeOptions& options) {
  const GroupOptions& group = options.model.group;
  if (options.fleet.scale != "off" && (group.replicas < 2 || group.most_tensor < 2)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--scale {} needs several replicas whose layers divide: add "
                      "--data-parallel-size 2 and --max-tensor-parallel-size 2, or more",
                      options.fleet.scale);
  }
  if (options.fleet.drop != "off" && group.replicas < 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--drop {} needs several replicas: add --data-parallel-size 2, or more",
                      options.fleet.drop);
  }
  return {};
}

// Checks and converts the options that CLI11 cannot, then finds the model.
Status complete(ServeOptions& options) {
  ServerOptions& server = options.server;
  server.drain_timeout_ms = options.shutdown_timeout_s * 1000;
  server.http.sse_ping_ms = options.sse_ping_interval_s * 1000;
  server.http.max_connections = clip_connections(server.http.max_connections);
  server.service.max_outstanding =
      options.model.group.replicas * options.model.max_num_seqs + options.max_queued;
  auto keys = collect_keys(std::move(options.api_keys), options.api_key_file);
  if (!keys.ok()) {
    return keys.error();
  }
  server.service.keys = ApiKeys(*keys);
  if (!options.admin_key.empty()) {
    const auto admin_keys = collect_keys({options.admin_key}, "");
    if (!admin_keys.ok()) {
      return admin_keys.error();
    }
    server.admin.keys = ApiKeys(*admin_keys);
  }
  if (Status grouped = check_groups(options); !grouped.ok()) {
    return grouped;
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
  const auto grammars = parse_bytes(options.grammar_memory);
  if (!grammars.ok() || *grammars < kLeastGrammarBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--grammar-memory {} must be a size of at least 16MiB",
                      options.grammar_memory);
  }
  options.grammar_bytes = static_cast<std::size_t>(*grammars);
  server.http.max_body_bytes = *body;
  server.http.max_inflight_body_bytes = *bodies;
  return locate_model(options.model);
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

// Returns the format of --tool-call-parser; for auto, the format that the chat template uses.
Result<ToolFormat> choose_tool_format(const ServeOptions& options, const ModelFiles& files) {
  if (options.tool_call_parser == "auto") {
    return detect_tool_format(files.chat.template_source);
  }
  return parse_tool_format(options.tool_call_parser);
}

ModelCard card_of(const ServeOptions& options, const ModelFiles& files, const Form& form) {
  const ModelSpec& spec = files.checkpoint->spec();
  const std::int64_t bf16_bytes = spec.layers * layer_bytes(spec, Precision::kBf16) +
                                  component_bytes(spec, Component::kEmbeddings, Precision::kBf16);
  return {.architecture = spec.architecture,
          .format = std::filesystem::is_directory(options.model.model) ? "safetensors" : "gguf",
          .parameters = bf16_bytes / 2,
          .weight_bytes = weight_bytes(spec, form)};
}

ServedModel served_model(const ServeOptions& options, const ModelFiles& files,
                         const ReplicaOptions& replica, ToolFormat tool_format) {
  const Sizing& sizing = replica.sizing;
  const ModelSpec& spec = files.checkpoint->spec();
  std::vector<Precision> ladder, layers, embeddings;
  if (replica.morph) {
    ladder = replica.morph->bounds.ladder;
    layers = layer_precisions(sizing.form, replica.morph->bounds.ladder);
    embeddings = embeddings_precisions(sizing.form.embeddings, replica.morph->bounds.ladder);
  }
  return {
      .names = options.served_names.empty() ? std::vector{files.name} : options.served_names,
      .tokenizer = files.tokenizer.get(),
      .chat_template = &files.chat_template,
      .bos_text = files.chat.bos_token,
      .eos_text = files.chat.eos_token,
      .defaults = files.generation,
      .max_model_len = sizing.max_model_len,
      .embedding_size = spec.hidden,
      .tool_format = tool_format,
      .special_tokens_in_content = options.model.special_tokens_in_content == "allow",
      .formats = std::make_shared<FormatCompiler>(*files.tokenizer, spec.vocab,
                                                  end_tokens(*files.tokenizer, files.generation),
                                                  options.grammar_bytes),
      .pooling = options.pooling == "last" ? Pooling::kLast : Pooling::kMean,
      .local_time = local_time,
      .form = {.form = sizing.form,
               .wanted = sizing.form,
               .mode = replica.morph ? replica.morph->mode : MorphMode::kOff,
               .ladder = std::move(ladder),
               .precisions = std::move(layers),
               .embeddings_precisions = std::move(embeddings),
               .page_bytes = sizing.budget.page_bytes,
               .pages = sizing.budget.pages,
               .pages_free =
                   sizing.budget.pages - form_pages(spec, sizing.form, sizing.budget.page_bytes)},
      .pages_by_device = [spec, page_bytes = sizing.budget.page_bytes](
                             const Form& form) { return pages_by_device(spec, form, page_bytes); },
      .ttft_target_ns = std::llround(options.morph.slo_ttft_ms * static_cast<double>(kNsPerMs)),
      .replicas = options.model.group.replicas,
      .router = std::string(to_string(replica.router)),
      .card = card_of(options, files, sizing.form)};
}

void log_start(const ModelFiles& files, const Sizing& sizing) {
  log::info("protean {}: {} ({}), {}", kVersion, files.name, files.checkpoint->description(),
            to_string(sizing.form));
  if (files.chat.template_source.empty()) {
    log::warning("{} has no chat template: chats use ChatML; give one with --chat-template",
                 files.name);
  }
  for (std::size_t device = 0; device < sizing.cpus.size(); ++device) {
    log::info("device {}: {}", device, to_string(sizing.cpus[device]));
  }
  for (const std::string& warning : sizing.warnings) {
    log::warning("{}", warning);
  }
}

// Learns what steps cost, and packs the weights that the policy may ask for. Several devices share
// a step, which a fingerprint on one of them does not tell: their steps are learned while they run.
void prepare(const ServeOptions& options, const ModelFiles& files, ReplicaOptions& replica) {
  if (replica.sizing.form.group.size() == 1) {
    replica.step_cost = known_step_cost({.model = options.model.model,
                                         .directory = options.morph.variant_cache,
                                         .version = kVersion},
                                        *files.checkpoint, fingerprint_options(replica));
  }
  pack_variants(replica);
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

// Only a policy or an operator changes a form. Replicas that become groups have one that may
// change.
bool may_morph(const ServeOptions& options) {
  return options.morph.mode != "off" || options.server.admin.port >= 0 ||
         options.fleet.scale != "off" || options.fleet.drop != "off";
}

// Opens the model's files. If there is an intent, also chooses how to serve them.
Result<ModelFiles> open_files(ServeOptions& options) {
  auto files = open_model_files(options.model);
  if (files.ok() && !options.intent.empty()) {
    const Status chosen =
        choose_for_intent(options.intent, options.morph.variant_cache, *files, options.model);
    if (!chosen.ok()) {
      return chosen.error();
    }
  }
  return files;
}

int run_serve(ServeOptions& options) {
  if (Status ready = complete(options); !ready.ok()) {
    return exit_with(ready.error());
  }
  const auto files = open_files(options);
  if (!files.ok()) {
    return exit_with(files.error());
  }
  auto replica_options = choose_replica(options.model, may_morph(options), options.morph, *files);
  if (!replica_options.ok()) {
    return exit_with(replica_options.error());
  }
  replica_options->router =
      parse_router(options.fleet.router).value();  // its flag allows no other name
  replica_options->scale = parse_scale(options.fleet.scale).value();
  replica_options->drop = parse_drop(options.fleet.drop).value();
  const Sizing& sizing = replica_options->sizing;
  log_start(*files, sizing);
  // The inbox has room for all requests that the server lets in.
  options.server.heartbeat = {watchdog_interval_ms(), [] { notify_systemd("WATCHDOG=1"); }};
  Inbox inbox(static_cast<std::size_t>(options.server.service.max_outstanding));
  const auto tool_format = choose_tool_format(options, *files);
  if (!tool_format.ok()) {
    return exit_with(tool_format.error());
  }
  const ServedModel model = served_model(options, *files, *replica_options, *tool_format);
  Server server(options.server, model, {.model_name = model.names.front(), .version = kVersion},
                real_environment(), inbox);
  // Constructed before any other thread. The first signal drains, a second one ends the program
  // at once. While the model loads there are no requests to wait for.
  std::atomic<bool> loaded = false;
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
    if (!loaded) {
      log::info("stopped while loading");
      background.reset();  // writes its pending lines
      std::_Exit(0);
    }
    notify_systemd("STOPPING=1");
    server.stop();
  });
  // The port is opened before the model is loaded, so that a port in use is reported at once.
  if (Status listening = server.listen(); !listening.ok()) {
    return exit_with(listening.error());
  }
  std::thread io([&server] { server.run(); });
  prepare(options, *files, *replica_options);
  const auto replicas = Replicas::start(*replica_options, *files->checkpoint, inbox, server);
  if (replicas.ok()) {
    loaded = true;
    server.set_ready();
    notify_systemd("READY=1\nSTATUS=serving " + model.names.front());
    log_ready(options.server, server);
  } else {
    server.stop();
  }
  if (server.admin_port() > 0) {
    log_operators_port(options.server, server.admin_port());
  }
  io.join();
  return replicas.ok() ? 0 : exit_with(replicas.error());
}

}  // namespace

namespace {

void add_network_options(CLI::App& app, ServeOptions& options) {
  ServerOptions& server = options.server;
  app.option_defaults()->group("Network");
  app.add_option("--host", server.host, "Listen on this address")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--port", server.port, "Listen on this port; 0 is any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  app.add_option(
         "--served-model-name", options.served_names,
         "Name by which clients may call the model (default its name on the hub, or the path's "
         "last part). May be repeated")
      ->type_name("NAME");
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

void add_router_option(CLI::App& app, ServeOptions& options) {
  app.add_option("--intent", options.intent,
                 "Choose precisions and parallelism for min-latency, min-cost, min-memory, "
                 "min-device-hours, latency-slo=500ms or cost-slo=0.02, as protean plan does, on "
                 "up to --devices devices")
      ->type_name("INTENT");
  app.add_option("--router", options.fleet.router,
                 "How a request's replica is chosen. first-token: the least predicted time to "
                 "the first token, prefix cache hits counted; freeness: the most free KV blocks "
                 "for each request, as in Llumnix; least-loaded: the fewest requests; "
                 "round-robin: in turn")
      ->check(one_of({"first-token", "freeness", "least-loaded", "round-robin"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--scale", options.fleet.scale,
                 "What becomes of a request that no replica can hold. off: it is refused; paper: "
                 "replicas become one group for it, as in AMOEBA, and part again after it")
      ->check(one_of({"off", "paper"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--drop", options.fleet.drop,
                 "What replicas do while queued requests lack KV. off: they wait; paper: replicas "
                 "drop layers that others hold, as in KunServe, and fetch them back after it")
      ->check(one_of({"off", "paper"}))
      ->capture_default_str()
      ->group("Devices");
}

void add_answer_options(CLI::App& app, ServeOptions& options) {
  app.option_defaults()->group("Answers");
  app.add_option("--tool-call-parser", options.tool_call_parser,
                 "Format in which the model writes tool calls; auto follows its chat template")
      ->type_name("FORMAT")
      ->check(one_of({"auto", "hermes", "llama3_json", "mistral", "qwen3_coder", "glm45", "none"}))
      ->capture_default_str();
  app.add_option("--pooling", options.pooling,
                 "Make an embedding from the mean of all tokens or from the last one")
      ->check(one_of({"mean", "last"}))
      ->capture_default_str();
  app.add_option("--grammar-memory", options.grammar_memory,
                 "Bound for the compiled schemas and patterns of structured output and their token "
                 "masks, in addition to --device-memory; the least recently used are dropped")
      ->type_name("SIZE")
      ->capture_default_str();
}

void add_operation_options(CLI::App& app, ServeOptions& options) {
  ServerOptions& server = options.server;
  app.option_defaults()->group("Operation");
  app.add_option("--max-num-queued-reqs", options.max_queued,
                 "Most requests that wait in addition to --max-num-seqs; more are answered 429")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
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
      "serve", "Serve a model over the OpenAI and Anthropic APIs until SIGTERM or Ctrl-C");
  auto options = std::make_shared<ServeOptions>();
  add_network_options(*app, *options);
  add_access_options(*app, *options);
  add_model_options(*app, options->model);
  add_router_option(*app, *options);
  add_morph_options(*app, options->morph);
  add_answer_options(*app, *options);
  add_operation_options(*app, *options);
  app->footer(
      "Example: protean serve MODEL --port 8000\n"
      "Then: curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "  -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 50, \"stream\": true}'");
  app->callback([options, &exit_code] { exit_code = run_serve(*options); });
}

}  // namespace protean
