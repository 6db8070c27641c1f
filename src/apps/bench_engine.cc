#include "apps/bench_engine.h"

#include <memory>

#include "apps/options.h"
#include "measure/engine_bench.h"
#include "replica/model_place.h"
#include "terminal/output.h"

namespace protean {
namespace {

int run_bench_engine(EngineBenchOptions& options) {
  auto path = locate_model(options.model);
  if (!path.ok()) {
    return exit_with(path.error());
  }
  options.model = *std::move(path);
  const auto table = measure_engine(options);
  if (!table.ok()) {
    return exit_with(table.error());
  }
  print_text(options.json ? to_json(*table) : to_text(*table));
  return 0;
}

void add_measuring_options(CLI::App& engine, EngineBenchOptions& options) {
  engine.option_defaults()->group("Measuring");
  engine.add_option("--repeat", options.repeat, "Runs of each step; its time is their median")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  engine
      .add_option("--memory", options.memory_mib,
                  "MiB to measure the read ceiling with, well above the caches")
      ->check(whole_number(16, 1 << 20))
      ->capture_default_str();
  engine.add_flag("--cpu-time", options.cpu_time,
                  "Measure processor time, for machines that have other work");
  add_variant_cache_option(engine, options.variant_cache);
  engine.add_flag("--json", options.json, "Print one JSON object instead of the table");
  add_group_options(engine, options.group);
  add_compute_options(engine, options.compute);
}

void add_peer_options(CLI::App& engine, LlamaBenchOptions& options) {
  engine.option_defaults()->group("Comparison");
  CLI::Option* program = engine
                             .add_option("--llama-bench", options.program,
                                         "llama.cpp's llama-bench, which computes the same sizes "
                                         "in alternating runs")
                             ->type_name("PROGRAM");
  CLI::Option* gguf =
      engine
          .add_option("--gguf", options.model, "Model for llama-bench, at a precision of its own")
          ->type_name("FILE")
          ->check(existing_path());
  program->needs(gguf);
  gguf->needs(program);
}

}  // namespace

void add_bench_engine(CLI::App& bench, int& exit_code) {
  CLI::App* engine = bench.add_subcommand(
      "engine", "Time one model's steps at each precision, next to this machine's ceilings");
  auto options = std::make_shared<EngineBenchOptions>();
  engine
      ->add_option("MODEL", options->model,
                   "Hugging Face directory, .gguf file, or ORG/NAME on a hub")
      ->type_name("MODEL")
      ->required();
  engine->option_defaults()->group("Steps");
  engine->add_option("--precisions", options->precisions, "Precisions of the layers")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of({"bf16", "s24", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"}))
      ->capture_default_str();
  engine
      ->add_option("--prefill", options->prompts,
                   "Lengths of prompts in tokens, each computed in one step")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(1, 1 << 16))
      ->capture_default_str();
  engine->add_option("--batches", options->batches, "Numbers of sequences that decode together")
      ->type_name("LIST")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  engine
      ->add_option("--context", options->context,
                   "Tokens in each of these sequences before the one that is decoded")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  add_measuring_options(*engine, *options);
  add_peer_options(*engine, options->peer);
  engine->footer("Example: protean bench engine MODEL --precisions bf16,w4 --json");
  engine->callback([options, &exit_code] { exit_code = run_bench_engine(*options); });
}

}  // namespace protean
