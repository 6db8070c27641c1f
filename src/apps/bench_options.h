#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "http/client_connection.h"
#include "loadtest/summary.h"
#include "loadtest/workload.h"

namespace protean::loadtest {

// The flags of `protean bench serve`. One that means what a flag of `vllm bench serve` means has
// its name.
struct TargetOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string endpoint = "completions";
  std::string model;
  std::string api_key;
  std::vector<std::string> headers;
  std::string extra_body;
  double temperature = 0;
  bool ignore_eos = false;
  std::string metrics_url;
  ClientTls tls;
};

struct LoadOptions {
  WorkloadOptions workload;
  double request_rate = 0;  // 0: not given
  int max_concurrency = 0;
  double duration_s = 0;
  double trace_start_s = 0;
  double timeout_s = 21600;
  std::int64_t num_warmups = 0;
};

struct PromptOptions {
  std::string trace;
  std::string prompt_file;
  std::string dataset;
  std::string token_ids;
  double tokens_per_word = 0;  // 0: ask the server
};

struct OutputOptions {
  std::string json;
  std::string html;
  std::string answers;
  bool no_records = false;
  bool save_itl = false;
  bool quiet = false;
  double metrics_interval_s = 1;
  std::vector<double> percentiles = {50, 90, 95, 99};
  std::vector<std::string> goodput;
  Slo slo;
};

struct BenchOptions {
  TargetOptions target;
  LoadOptions load;
  PromptOptions prompts;
  OutputOptions output;
};

void add_bench_options(CLI::App& app, BenchOptions& options);

}  // namespace protean::loadtest
