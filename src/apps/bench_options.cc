#include "apps/bench_options.h"

#include "apps/options.h"

namespace protean::loadtest {
namespace {

constexpr std::int64_t kMostRequests = 1'000'000'000;

void add_target(CLI::App& app, TargetOptions& target) {
  app.option_defaults()->group("Server");
  app.add_option("--base-url,--url", target.base_url, "Address of the server, http or https")
      ->type_name("URL")
      ->capture_default_str();
  app.add_option("--endpoint", target.endpoint,
                 "chat, completions, or a path that ends in completions")
      ->type_name("ENDPOINT")
      ->capture_default_str();
  app.add_option("--model", target.model,
                 "Model to ask for (default the first that the server lists)")
      ->type_name("NAME");
  app.add_option("--api-key", target.api_key, "Bearer token (default $OPENAI_API_KEY)")
      ->type_name("KEY");
  app.add_option("--header", target.headers, "Header of every request. May be repeated")
      ->type_name("NAME=VALUE");
  app.add_option("--ca-file", target.tls.ca_file, "PEM file with certificates to trust")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_flag("--insecure", target.tls.insecure, "Accept any certificate");
}

void add_load(CLI::App& app, LoadOptions& load) {
  WorkloadOptions& workload = load.workload;
  app.option_defaults()->group("Load");
  app.add_option("--num-prompts,--limit", workload.num_prompts,
                 "Requests to send (default the whole trace, as many as --duration takes, or 1000)")
      ->check(whole_number(1, kMostRequests));
  app.add_option("--duration", load.duration_s,
                 "Seconds to send for; requests that are running then are awaited")
      ->type_name("SECONDS")
      ->check(number_range(1e-3, 1e9));
  app.add_option("--request-rate,--rate", load.request_rate,
                 "Requests a second; inf sends all at once (default the arrivals of --trace, or "
                 "inf without one)");
  app.add_option("--burstiness", workload.burstiness,
                 "Shape of the gamma distribution of gaps: 1 is Poisson, less is burstier, more "
                 "steadier")
      ->capture_default_str();
  app.add_option("--max-concurrency,--concurrency", load.max_concurrency,
                 "Most requests at a time; with --request-rate inf a closed loop; 0 is no bound")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--num-warmups", load.num_warmups,
                 "Requests of the same lengths, with other prompts, to send first and not count")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--timeout", load.timeout_s, "Seconds after which a request has failed")
      ->type_name("SECONDS")
      ->check(number_range(1e-3, 1e9))
      ->capture_default_str();
  app.add_option("--seed", workload.seed, "Seed of arrivals, lengths and prompts")
      ->capture_default_str();
}

void add_trace(CLI::App& app, LoadOptions& load, PromptOptions& prompts) {
  WorkloadOptions& workload = load.workload;
  app.option_defaults()->group("Trace");
  app.add_option("--trace", prompts.trace,
                 "Replay the arrivals and lengths in an Azure, BurstGPT, Mooncake, Sarathi or "
                 "Vidur file, in a recording of the dashboard or in a folder of ServeGen clients")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--trace-start", load.trace_start_s, "Seconds of the trace to leave out")
      ->type_name("SECONDS")
      ->check(number_range(0, 1e12));
  app.add_option("--time-scale", workload.time_scale,
                 "Factor of the trace's arrival times: 0.5 doubles the load")
      ->capture_default_str();
  app.add_option("--length-scale", workload.length_scale, "Factor of the trace's token counts")
      ->capture_default_str();
  app.add_option("--max-input-len", workload.max_input_tokens,
                 "Cut the trace's inputs to this many tokens")
      ->check(whole_number(1, kMostTokens));
  app.add_option("--max-output-len", workload.max_output_tokens,
                 "Cut the trace's outputs to this many tokens")
      ->check(whole_number(1, kMostTokens));
}

void add_prompts(CLI::App& app, LoadOptions& load, PromptOptions& prompts) {
  WorkloadOptions& workload = load.workload;
  app.option_defaults()->group("Prompts and answers");
  app.add_option("--random-input-len", workload.input_tokens,
                 "Tokens of a prompt if there is no trace")
      ->capture_default_str();
  app.add_option("--random-output-len", workload.output_tokens,
                 "Tokens of an answer if there is no trace")
      ->capture_default_str();
  app.add_option("--random-range-ratio", workload.range_ratio,
                 "Draw lengths uniformly from n (1 - r) to n (1 + r)")
      ->capture_default_str();
  app.add_option("--prompt-file", prompts.prompt_file, "Text file; prompts are made of its words")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--dataset-path", prompts.dataset,
                 "Prompts to send: JSON lines of {\"prompt\": text, \"output_tokens\": n}")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option("--token-ids", prompts.token_ids,
                 "Make prompts of random token ids from FIRST:LAST, of exact length")
      ->type_name("RANGE");
  app.add_option("--tokens-per-word", prompts.tokens_per_word,
                 "Tokens in a word (default measured with two short prompts)")
      ->check(number_range(1e-6, 1e6));
}

void add_body(CLI::App& app, TargetOptions& target) {
  app.add_option("--temperature", target.temperature, "Temperature of every request")
      ->capture_default_str();
  app.add_flag("--ignore-eos", target.ignore_eos, "Make answers as long as was asked for");
  app.add_option("--extra-body", target.extra_body,
                 "JSON object whose fields are added to every request")
      ->type_name("JSON");
}

void add_output(CLI::App& app, OutputOptions& output) {
  app.option_defaults()->group("Limits of good answers");
  app.add_option("--goodput", output.goodput,
                 "Limits in ms that a good answer keeps, such as ttft:200 tpot:50 e2el:5000")
      ->type_name("LIMITS");
  app.add_option("--slo-ttft-ms", output.slo.ttft_ms, "Limit of the time to first token")
      ->type_name("MS")
      ->check(number_range(1e-3, 1e12));
  app.add_option("--slo-tpot-ms", output.slo.tpot_ms, "Limit of the mean time per further token")
      ->type_name("MS")
      ->check(number_range(1e-3, 1e12));
  app.add_option("--slo-e2e-ms", output.slo.e2e_ms, "Limit of the whole request's time")
      ->type_name("MS")
      ->check(number_range(1e-3, 1e12));
  app.option_defaults()->group("Output");
  app.add_option("--json", output.json, "Write the results to this file; - is standard output")
      ->type_name("FILE");
  app.add_option("--html", output.html, "Write a report with charts to this file, as one page")
      ->type_name("FILE");
  app.add_option("--save-answers", output.answers,
                 "Write each request and its stream's chunks to this file, one JSON object a line")
      ->type_name("FILE");
  app.add_flag("--no-records", output.no_records, "Leave each request's record out of --json");
  app.add_flag("--save-detailed", output.save_itl, "Add every inter-token latency to --json");
  app.add_option("--metric-percentiles", output.percentiles, "Percentiles to report")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(number_range(0.0, 100.0))
      ->capture_default_str();
}

void add_monitoring(CLI::App& app, TargetOptions& target, OutputOptions& output) {
  app.add_option("--metrics-url", target.metrics_url,
                 "Address of the server's metrics, which gets no keys or headers (default /metrics "
                 "of --base-url)")
      ->type_name("URL");
  app.add_option("--metrics-interval", output.metrics_interval_s,
                 "Seconds between readings of the server's metrics; 0 reads none")
      ->type_name("SECONDS")
      ->check(number_range(0, 1e9))
      ->capture_default_str();
  app.add_flag("--quiet", output.quiet, "Show no progress");
}

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& options) {
  add_target(app, options.target);
  add_load(app, options.load);
  add_trace(app, options.load, options.prompts);
  add_prompts(app, options.load, options.prompts);
  add_body(app, options.target);
  add_output(app, options.output);
  add_monitoring(app, options.target, options.output);
}

}  // namespace protean::loadtest
