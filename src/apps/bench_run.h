#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/bench_options.h"
#include "loadtest/load_generator.h"
#include "loadtest/prompt.h"
#include "loadtest/report_text.h"
#include "loadtest/workload.h"
#include "trace/trace.h"

namespace protean::loadtest {

// A benchmark run that is ready to start, made from options that were checked.
struct BenchRun {
  GeneratorOptions generator;
  std::unique_ptr<Trace> trace;
  std::unique_ptr<Workload> workload;
  std::unique_ptr<PromptWriter> prompts;
  RunDescription description;
};

// Makes the part of a run that says which requests arrive when, and describes it.
Result<BenchRun> plan_arrivals(BenchOptions& options);

// Makes a run from the options. Sends nothing.
Result<BenchRun> make_run(BenchOptions& options);

// Asks the server for its model and measures how many tokens a word has.
Status meet_server(const BenchOptions& options, BenchRun& bench);

// Returns the next request of the run; nothing at its end.
std::optional<ReadyRequest> next_ready(BenchRun& bench);

// Reads a whole file.
Result<std::string> read_text(const std::string& path);

}  // namespace protean::loadtest
