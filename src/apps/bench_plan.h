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

// What a run is made of, once everything a user can get wrong has been looked at.
struct BenchPlan {
  GeneratorOptions generator;
  std::unique_ptr<Trace> trace;
  std::unique_ptr<Workload> workload;
  std::unique_ptr<PromptWriter> prompts;
  RunDescription description;
};

// Speaks with nobody yet.
Result<BenchPlan> make_plan(BenchOptions& options);

// The part that speaks with the server before the run: its model, and how many tokens a word is.
Status meet_server(const BenchOptions& options, BenchPlan& plan);

std::optional<ReadyRequest> next_ready(BenchPlan& plan);

// A whole file, or why not.
Result<std::string> read_text(const std::string& path);

}  // namespace protean::loadtest
