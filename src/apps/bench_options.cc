#include "apps/bench_options.h"

namespace protean::loadtest {
namespace {

void add_target(CLI::App& app, TargetOptions& target) {
  app.add_option("--base-url,--url", target.base_url, "server, http or https")
      ->capture_default_str();
  app.add_option("--endpoint", target.endpoint,
                 "chat, completions, or a path that ends in completions")
      ->capture_default_str();
  app.add_option("--model", target.model, "name to ask for; default: the first the server lists");
  app.add_option("--api-key", target.api_key, "bearer token; default: $OPENAI_API_KEY");
  app.add_option("--header", target.headers, "NAME=VALUE, sent with every request; repeatable");
  app.add_option("--extra-body", target.extra_body, "JSON object whose fields are added to bodies");
  app.add_option("--temperature", target.temperature)->capture_default_str();
  app.add_flag("--ignore-eos", target.ignore_eos, "answers are as long as asked for");
  app.add_option("--metrics-url", target.metrics_url,
                 "where the server's metrics are, if not at /metrics of --base-url: another port, "
                 "say; keys and headers are not sent there");
  app.add_option("--ca-file", target.tls.ca_file, "certificates to trust (PEM)");
  app.add_flag("--insecure", target.tls.insecure, "take any certificate");
}

void add_load(CLI::App& app, LoadOptions& load) {
  WorkloadOptions& workload = load.workload;
  app.add_option("--request-rate,--rate", load.request_rate,
                 "requests/s; inf: at once; default: as --trace has them, else inf");
  app.add_option("--burstiness", workload.burstiness,
                 "shape of the gamma distributed gaps: 1 Poisson, less burstier, more steadier")
      ->capture_default_str();
  app.add_option("--max-concurrency,--concurrency", load.max_concurrency,
                 "requests at a time; with --request-rate inf a closed loop; 0 = no limit")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--num-prompts,--limit", workload.num_prompts,
                 "requests to send; default: the whole trace, as many as --duration takes, or 1000")
      ->check(CLI::PositiveNumber);
  app.add_option("--num-warmups", load.num_warmups,
                 "requests to send first, of the same lengths, that count for nothing; their "
                 "prompts are not those of the run")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--duration", load.duration_s, "seconds to send for; what runs is awaited")
      ->check(CLI::PositiveNumber);
  app.add_option("--timeout", load.timeout_s, "seconds of one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--time-scale", workload.time_scale,
                 "arrival times of a trace are multiplied by it: 0.5 is twice the load")
      ->capture_default_str();
  app.add_option("--length-scale", workload.length_scale,
                 "token counts of a trace are multiplied by it")
      ->capture_default_str();
  app.add_option("--trace-start", load.trace_start_s, "seconds of the trace to leave out")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-input-len", workload.max_input_tokens, "longer inputs of a trace are cut")
      ->check(CLI::PositiveNumber);
  app.add_option("--max-output-len", workload.max_output_tokens, "longer outputs are cut")
      ->check(CLI::PositiveNumber);
  app.add_option("--random-input-len", workload.input_tokens, "tokens of a prompt without a trace")
      ->capture_default_str();
  app.add_option("--random-output-len", workload.output_tokens, "tokens of an answer without one")
      ->capture_default_str();
  app.add_option("--random-range-ratio", workload.range_ratio,
                 "lengths are uniform in [n (1 - r), n (1 + r)]")
      ->capture_default_str();
  app.add_option("--seed", workload.seed, "of schedule, lengths and prompts")
      ->capture_default_str();
}

void add_prompts(CLI::App& app, PromptOptions& prompts) {
  app.add_option(
      "--trace", prompts.trace,
      "arrivals and lengths: Azure, BurstGPT, Mooncake, Sarathi or Vidur file, or folder "
      "of ServeGen clients");
  app.add_option("--prompt-file", prompts.prompt_file, "text whose words prompts are made of");
  app.add_option("--dataset-path", prompts.dataset,
                 "JSON lines of {\"prompt\": text, \"output_tokens\": n}");
  app.add_option("--token-ids", prompts.token_ids,
                 "FIRST:LAST; prompts are random token ids in that range, of exact length");
  app.add_option("--tokens-per-word", prompts.tokens_per_word,
                 "of the server's tokenizer; default: found out with two short prompts")
      ->check(CLI::PositiveNumber);
}

void add_output(CLI::App& app, OutputOptions& output) {
  app.add_option("--json", output.json, "write the results to FILE; - = standard output");
  app.add_option("--html", output.html, "write a report with charts to FILE; it is one page");
  app.add_option("--save-answers", output.answers,
                 "write each request and its stream's chunks to FILE, a JSON object a line");
  app.add_flag("--no-records", output.no_records, "leave the record of each request out of --json");
  app.add_flag("--save-detailed", output.save_itl, "add every inter-token latency to --json");
  app.add_flag("--quiet", output.quiet, "no progress");
  app.add_option("--metric-percentiles", output.percentiles, "like 50,99")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--goodput", output.goodput,
                 "limits in ms that a good answer keeps: ttft:200 tpot:50 e2el:5000");
  app.add_option("--slo-ttft-ms", output.slo.ttft_ms)->check(CLI::PositiveNumber);
  app.add_option("--slo-tpot-ms", output.slo.tpot_ms)->check(CLI::PositiveNumber);
  app.add_option("--slo-e2e-ms", output.slo.e2e_ms)->check(CLI::PositiveNumber);
  app.add_option("--metrics-interval", output.metrics_interval_s,
                 "seconds between readings of the server's /metrics; 0 = none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& options) {
  add_target(app, options.target);
  add_load(app, options.load);
  add_prompts(app, options.prompts);
  add_output(app, options.output);
}

}  // namespace protean::loadtest
