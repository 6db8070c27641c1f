#include "apps/bench_run.h"

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "loadtest/trace_file.h"

namespace protean::loadtest {
namespace {

constexpr std::int64_t kShortPrompt = 1;  // tokens
constexpr TimeNs kProbeTimeout = 120 * kNsPerS;
constexpr std::int64_t kDefaultPrompts = 1000;
constexpr int kWarmupConcurrency = 16;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

TimeNs to_ns(double seconds) {
  return static_cast<TimeNs>(std::min(seconds, 1e9) * kNsPerS);
}

Result<GeneratorOptions> generator_options(const BenchOptions& options) {
  const TargetOptions& target = options.target;
  GeneratorOptions made{.tls = target.tls,
                        .max_concurrency = options.load.max_concurrency,
                        .timeout_ns = to_ns(options.load.timeout_s),
                        .duration_ns = options.load.workload.duration_ns,
                        .metrics_interval_ns = to_ns(options.output.metrics_interval_s)};
  RequestTemplate& request = made.request;
  const auto server = parse_server_url(target.base_url);
  if (!server.ok()) {
    return server.error();
  }
  request.server = *server;
  if (!target.metrics_url.empty()) {
    auto metrics = parse_server_url(target.metrics_url, "--metrics-url");
    if (!metrics.ok()) {
      return metrics.error();
    }
    made.metrics_server = *std::move(metrics);
  }
  request.model = target.model;
  request.temperature = target.temperature;
  request.ignore_eos = target.ignore_eos;
  std::vector<Status> set = {set_endpoint(request, target.endpoint)};
  const char* key = std::getenv("OPENAI_API_KEY");
  set.push_back(set_api_key(
      request, !target.api_key.empty() || key == nullptr ? target.api_key : std::string(key)));
  for (const std::string& header : target.headers) {
    set.push_back(add_header(request, header));
  }
  if (!target.extra_body.empty()) {
    set.push_back(set_extra_body(request, target.extra_body));
  }
  for (const Status& status : set) {
    if (!status.ok()) {
      return status.error();
    }
  }
  return made;
}

// Returns the first model that the server lists.
Result<std::string> ask_for_model(const GeneratorOptions& options) {
  const auto listed = LoadGenerator::get(options, "/v1/models");
  if (!listed.ok()) {
    return make_error(listed.error().code, "{} (asked for its models; --model NAME would not ask)",
                      listed.error().message);
  }
  boost::system::error_code failed;
  const boost::json::value models = boost::json::parse(*listed, failed);
  const boost::json::value* id = failed ? nullptr : models.find_pointer("/data/0/id", failed);
  if (id == nullptr || !id->is_string()) {
    return make_error(ErrorCode::kUnavailable,
                      "/v1/models lists no model: say which one with --model");
  }
  return std::string(id->get_string());
}

Result<PromptSource> prompt_source(const PromptOptions& options, Dialect dialect) {
  PromptSource source;
  const int given = (options.prompt_file.empty() ? 0 : 1) + (options.dataset.empty() ? 0 : 1) +
                    (options.token_ids.empty() ? 0 : 1);
  if (given > 1 || (!options.dataset.empty() && !options.trace.empty())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "give one of --prompt-file, --dataset-path and --token-ids; a dataset also "
                      "rules out --trace");
  }
  if (!options.prompt_file.empty()) {
    auto text = read_text(options.prompt_file);
    if (!text.ok()) {
      return text.error();
    }
    source.text = *std::move(text);
  }
  if (!options.dataset.empty()) {
    const auto text = read_text(options.dataset);
    auto prompts = text.ok() ? parse_dataset(*text, options.dataset) : text.error();
    if (!prompts.ok()) {
      return prompts.error();
    }
    source.dataset = *std::move(prompts);
  }
  if (!options.token_ids.empty()) {
    if (dialect == Dialect::kChat) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--token-ids is for --endpoint completions: a chat message is text");
    }
    const auto range = parse_token_ids(options.token_ids);
    if (!range.ok()) {
      return range.error();
    }
    source.token_ids = *range;
  }
  return source;
}

// Sends requests before the run, all of which must be answered. An answer whose only token has no
// text counts as one.
Result<RunResult> run_before(const GeneratorOptions& options, RequestSource source,
                             std::string_view what) {
  LoadGenerator generator(options, std::move(source));
  auto run = generator.run(nullptr);
  if (!run.ok()) {
    return run.error();
  }
  for (const RequestRecord& record : run->records) {
    if (record.outcome != Outcome::kCompleted && record.outcome != Outcome::kEmptyAnswer) {
      return make_error(
          ErrorCode::kUnavailable, "{}{} does not answer {}: {}{}",
          options.request.server.host_header, options.request.path, what,
          record.http_status >= 400 ? fmt::format("HTTP {}: ", record.http_status) : "",
          record.error);
    }
  }
  return run;
}

// Sends one request for a single token and waits for its answer.
Result<RequestRecord> ask_once(const GeneratorOptions& options, const std::string& body) {
  const auto once = [&, sent = 0]() mutable -> std::optional<ReadyRequest> {
    return sent++ > 0 ? std::nullopt : std::optional(ReadyRequest{{}, body});
  };
  auto run = run_before(options, once, "a short prompt");
  if (!run.ok()) {
    return run.error();
  }
  return std::move(run->records.front());
}

// Checks with short prompts that the server answers, and measures how many tokens its tokenizer
// makes of a word if the run's prompts are words. Adds what it could not measure to `notes`.
Status probe(GeneratorOptions options, BenchRun& bench, std::int64_t longest_tokens) {
  options.max_concurrency = 1;
  options.timeout_ns = std::min(options.timeout_ns, kProbeTimeout);
  options.metrics_interval_ns = 0;
  options.duration_ns = 0;
  options.request_id_prefix = "bench-probe";
  if (bench.prompts->writes_token_ids()) {
    const PlannedRequest planned{.index = -1, .input_tokens = next_probe({}, longest_tokens).count};
    const auto answer = ask_once(options, planned_body(options.request, *bench.prompts, planned));
    return answer.ok() ? Status() : answer.error();
  }
  std::vector<ProbePrompt> sent;
  for (ProbeWords words = next_probe(sent, longest_tokens); words.count > 0;
       words = next_probe(sent, longest_tokens)) {
    const std::string text = bench.prompts->probe_text(words);
    const auto answer = ask_once(options, probe_body(options.request, text));
    if (!answer.ok()) {
      return answer.error();
    }
    if (!answer->has_usage) {
      bench.description.notes.emplace_back(
          "the server sends no usage: a word of a prompt counts as a token");
      return {};
    }
    sent.push_back({words, answer->input_tokens});
  }
  bench.prompts->set_calibration(calibrate(sent));
  return {};
}

// Sends requests of the run's lengths with other prompts, so that a prefix cache holds none of the
// run's. Sends as many at a time as the run allows.
Status warm_up(const BenchOptions& options, BenchRun& bench) {
  WorkloadOptions lengths = options.load.workload;
  lengths.num_prompts = options.load.num_warmups;
  lengths.duration_ns = 0;
  auto workload = Workload::create(lengths, bench.trace.get());
  if (!workload.ok()) {
    return workload.error();
  }
  GeneratorOptions generator = bench.generator;
  generator.metrics_interval_ns = 0;
  generator.duration_ns = 0;
  generator.request_id_prefix = "bench-warmup";
  generator.max_concurrency =
      generator.max_concurrency > 0 ? generator.max_concurrency : kWarmupConcurrency;
  const auto next = [&]() -> std::optional<ReadyRequest> {
    auto planned = workload->next();
    if (!planned) {
      return std::nullopt;
    }
    PlannedRequest other = *planned;
    other.index = -1 - planned->index;
    other.prefix_blocks = {};
    planned->at_ns = 0;
    return ReadyRequest{*planned, planned_body(bench.generator.request, *bench.prompts, other)};
  };
  const auto run = run_before(generator, next, "the warm-up");
  if (!run.ok()) {
    return run.error();
  }
  bench.description.notes.push_back(fmt::format("after {} warm-up requests", run->records.size()));
  return {};
}

// Tokens that a probe prompt may have: as many as the longest prompt of the run. Prompts of a
// dataset are sent as they are; only warm-ups are then written from words.
std::int64_t longest_probe(const BenchOptions& options, const BenchRun& bench) {
  const bool measures = !bench.prompts->has_dataset() || options.load.num_warmups > 0;
  return measures ? bench.workload->longest_input() : kShortPrompt;
}

std::string arrivals_text(const BenchOptions& options, const Trace* trace) {
  const LoadOptions& load = options.load;
  std::string text;
  if (!load.workload.request_rate) {
    text = fmt::format("arrivals of {}", options.prompts.trace);
    if (load.workload.time_scale != 1) {
      text += fmt::format(", times x {:g}", load.workload.time_scale);
    }
  } else if (std::isinf(*load.workload.request_rate)) {
    text = load.max_concurrency > 0 ? "closed loop" : "all requests at once";
  } else {
    text = fmt::format("{} arrivals, {:g} requests/s",
                       load.workload.burstiness == 1
                           ? "Poisson"
                           : fmt::format("gamma ({:g})", load.workload.burstiness),
                       *load.workload.request_rate);
  }
  if (load.max_concurrency > 0) {
    text += fmt::format(", at most {} at a time", load.max_concurrency);
  }
  if (load.trace_start_s > 0) {
    text += fmt::format(", from {:g} s of the trace on", load.trace_start_s);
  }
  if (load.workload.num_prompts > 0) {
    text += fmt::format(", {} requests", load.workload.num_prompts);
  }
  if (load.duration_s > 0) {
    text += fmt::format(", for {:g} s", load.duration_s);
  }
  return trace == nullptr ? text : text + fmt::format(" ({})", to_string(trace->format));
}

std::string prompts_text(const BenchOptions& options, const Trace* trace) {
  const PromptOptions& prompts = options.prompts;
  const WorkloadOptions& workload = options.load.workload;
  std::string text = !prompts.dataset.empty()       ? "prompts of " + prompts.dataset
                     : !prompts.prompt_file.empty() ? "words of " + prompts.prompt_file
                     : !prompts.token_ids.empty()   ? "token ids " + prompts.token_ids
                                                    : "random words";
  if (trace != nullptr && has_lengths(*trace)) {
    text += fmt::format(", lengths of {}", prompts.trace);
    if (workload.length_scale != 1) {
      text += fmt::format(" x {:g}", workload.length_scale);
    }
    if (workload.max_input_tokens > 0) {
      text += fmt::format(", at most {} tokens in", workload.max_input_tokens);
    }
    if (workload.max_output_tokens > 0) {
      text += fmt::format(", at most {} tokens out", workload.max_output_tokens);
    }
  } else {
    text += fmt::format(", {} tokens in, {} out", workload.input_tokens, workload.output_tokens);
    if (workload.range_ratio > 0) {
      text += fmt::format(" (+- {:.0f} %)", workload.range_ratio * 100);
    }
  }
  return text + (options.target.ignore_eos ? ", ignoring EOS" : "");
}

Status plan_workload(BenchOptions& options, BenchRun& bench) {
  if (!options.prompts.trace.empty()) {
    auto trace = read_trace(options.prompts.trace);
    if (!trace.ok()) {
      return trace.error();
    }
    bench.trace = std::make_unique<Trace>(*std::move(trace));
  }
  WorkloadOptions& workload = options.load.workload;
  const bool replay = bench.trace && has_arrivals(*bench.trace);
  if (options.load.request_rate != 0) {
    workload.request_rate = options.load.request_rate;
  } else if (!replay) {
    workload.request_rate = std::numeric_limits<double>::infinity();
  }
  if (workload.num_prompts == 0 && workload.duration_ns == 0 && workload.request_rate) {
    workload.num_prompts = kDefaultPrompts;
  }
  auto made = Workload::create(workload, bench.trace.get());
  if (!made.ok()) {
    return made.error();
  }
  bench.workload = std::make_unique<Workload>(*std::move(made));
  return {};
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return make_error(ErrorCode::kNotFound, "{} cannot be read, or is empty", path);
  }
  return std::move(text).str();
}

Result<BenchRun> plan_arrivals(BenchOptions& options) {
  BenchRun bench;
  options.load.workload.duration_ns = to_ns(options.load.duration_s);
  options.load.workload.trace_start_ns = to_ns(options.load.trace_start_s);
  for (const std::string& goodput : options.output.goodput) {
    if (Status set = set_goodput(options.output.slo, goodput); !set.ok()) {
      return set.error();
    }
  }
  if (Status planned = plan_workload(options, bench); !planned.ok()) {
    return planned.error();
  }
  RunDescription& run = bench.description;
  if (bench.trace) {
    run.notes = bench.trace->notes;
  }
  run.arrivals = arrivals_text(options, bench.trace.get());
  run.prompts = prompts_text(options, bench.trace.get());
  run.seed = options.load.workload.seed;
  run.max_concurrency = options.load.max_concurrency;
  run.request_rate = options.load.workload.request_rate.value_or(0);
  run.burstiness = options.load.workload.burstiness;
  run.slo = options.output.slo;
  return bench;
}

Result<BenchRun> make_run(BenchOptions& options) {
  auto bench = plan_arrivals(options);
  if (!bench.ok()) {
    return bench;
  }
  auto generator = generator_options(options);
  if (!generator.ok()) {
    return generator.error();
  }
  bench->generator = *std::move(generator);
  auto source = prompt_source(options.prompts, bench->generator.request.dialect);
  if (!source.ok()) {
    return source.error();
  }
  bench->prompts = std::make_unique<PromptWriter>(*std::move(source), options.load.workload.seed);
  return bench;
}

Status meet_server(const BenchOptions& options, BenchRun& bench) {
  RunDescription& run = bench.description;
  if (options.target.model.empty()) {
    auto model = ask_for_model(bench.generator);
    if (!model.ok()) {
      return model.error();
    }
    bench.generator.request.model = *std::move(model);
  }
  if (options.prompts.tokens_per_word > 0) {
    bench.prompts->set_calibration({options.prompts.tokens_per_word, 0});
  } else if (Status met = probe(bench.generator, bench, longest_probe(options, bench)); !met.ok()) {
    return met.error();
  }
  if (options.load.num_warmups > 0) {
    if (Status warmed = warm_up(options, bench); !warmed.ok()) {
      return warmed;
    }
  }
  run.server = options.target.base_url;
  run.endpoint = bench.generator.request.path;
  run.model = bench.generator.request.model;
  run.date = utc_now();
  return {};
}

std::optional<ReadyRequest> next_ready(BenchRun& bench) {
  auto planned = bench.workload->next();
  if (!planned) {
    return std::nullopt;
  }
  const DatasetPrompt* line = bench.prompts->dataset_prompt(*planned);
  if (line != nullptr && line->output_tokens > 0) {
    planned->output_tokens = line->output_tokens;
  }
  return ReadyRequest{*planned, planned_body(bench.generator.request, *bench.prompts, *planned)};
}

}  // namespace protean::loadtest
