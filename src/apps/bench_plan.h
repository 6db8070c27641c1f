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

// The parts of a run, made from options that were checked.
struct BenchPlan {
  GeneratorOptions generator;
  std::unique_ptr<Trace> trace;
  std::unique_ptr<Workload> workload;
  std::unique_ptr<PromptWriter> prompts;
  RunDescription description;
};

// Makes the part of the plan that says which requests arrive when, and describes it.
Result<BenchPlan> plan_arrivals(BenchOptions& options);

// Makes the plan from the options. Sends nothing.
Result<BenchPlan> make_plan(BenchOptions& options);

// Asks the server for its model and measures how many tokens a word has.
Status meet_server(const BenchOptions& options, BenchPlan& plan);

// Returns the next request of the plan; nothing at its end.
std::optional<ReadyRequest> next_ready(BenchPlan& plan);

// Reads a whole file.
Result<std::string> read_text(const std::string& path);

}  // namespace protean::loadtest
