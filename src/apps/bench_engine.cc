#include "apps/bench_engine.h"

#include <memory>

#include "apps/options.h"
#include "measure/engine_bench.h"
#include "terminal/output.h"

namespace protean {
namespace {

int run_bench_engine(const EngineBenchOptions& options) {
  const auto table = measure_engine(options);
  if (!table.ok()) {
    return exit_with(table.error());
  }
  print_text(options.json ? to_json(*table) : to_text(*table));
  return 0;
}

void add_measuring_options(CLI::App& engine, EngineBenchOptions& options) {
  add_compute_options(engine, options.compute);
  engine.add_option("--repeat", options.repeat, "times are medians of so many steps")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  engine
      .add_option("--memory", options.memory_mib,
                  "MiB to measure the read ceiling with, well above the caches")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  engine.add_option("--variant-cache", options.variant_cache,
                    "folder that keeps packed layers; default: protean in $XDG_CACHE_HOME or "
                    "~/.cache");
  engine.add_flag("--cpu-time", options.cpu_time,
                  "time by the processor time used, for machines that have other work");
  engine.add_flag("--json", options.json, "one JSON object instead of the table");
}

void add_peer_options(CLI::App& engine, LlamaBenchOptions& options) {
  CLI::Option* program = engine.add_option("--llama-bench", options.program,
                                           "this program does the same sizes, in alternating runs");
  CLI::Option* gguf =
      engine.add_option("--gguf", options.model, "the model for it, in a precision of its own");
  program->needs(gguf);
  gguf->needs(program);
}

}  // namespace

void add_bench_engine(CLI::App& bench, int& exit_code) {
  CLI::App* engine = bench.add_subcommand(
      "engine", "time one model's steps, at each precision, beside the ceilings of this machine");
  auto options = std::make_shared<EngineBenchOptions>();
  engine->add_option("model", options->model, "Hugging Face directory or .gguf file")->required();
  engine->add_option("--precisions", options->precisions, "of the layers' weights")
      ->delimiter(',')
      ->capture_default_str();
  engine->add_option("--prefill", options->prompts, "tokens of prompts, each computed in one step")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  engine->add_option("--batches", options->batches, "sequences that decode together")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  engine->add_option("--context", options->context, "tokens before the one that is decoded")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_measuring_options(*engine, *options);
  add_peer_options(*engine, options->peer);
  engine->footer("Example: protean bench engine MODEL --precisions bf16,w4 --json");
  engine->callback([options, &exit_code] { exit_code = run_bench_engine(*options); });
}

}  // namespace protean
