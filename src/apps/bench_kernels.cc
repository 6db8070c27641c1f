#include "apps/bench_kernels.h"

#include <memory>
#include <string_view>

#include "apps/options.h"
#include "measure/kernel_bench.h"
#include "terminal/output.h"

namespace protean {
namespace {

int run_bench_kernels(const KernelBenchOptions& options) {
  const auto table = measure_kernels(options, [&](std::string_view line) {
    if (!options.json) {
      print_text(line);
    }
  });
  if (!table.ok()) {
    return exit_with(table.error());
  }
  if (options.json) {
    print_text(to_json(*table));
  }
  return 0;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, int& exit_code) {
  CLI::App* kernels =
      bench.add_subcommand("kernels", "time the kernels beside the two ceilings of this machine");
  auto options = std::make_shared<KernelBenchOptions>();
  kernels->add_option("--kernels", options->kernels, "which: matmul, attention, elementwise")
      ->check(CLI::IsMember({"matmul", "attention", "elementwise"}))
      ->capture_default_str();
  kernels->add_option("--like", options->like, "dimensions of these models: 1b, 8b")
      ->check(CLI::IsMember({"1b", "8b"}))
      ->capture_default_str();
  kernels->add_option("--dtype", options->dtypes, "precisions of the weights")
      ->check(CLI::IsMember({"f32", "bf16", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"}))
      ->capture_default_str();
  kernels->add_option("--rows", options->rows, "rows of activations: 1 is a decode step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  kernels->add_option("--kv", options->kv, "what KV is stored as, for attention: bf16, int8")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->capture_default_str();
  kernels->add_option("--context", options->context, "tokens that attention looks back at")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_compute_options(*kernels, options->compute);
  kernels->add_option("--repeat", options->repeat, "times are medians of so many runs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  kernels
      ->add_option("--memory", options->memory_mib,
                   "MiB of weights, or of KV, to go through, well above the caches")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  kernels->add_flag("--cpu-time", options->cpu_time,
                    "time by the processor time used, for machines that have other work");
  kernels->add_flag("--json", options->json, "one JSON object instead of the table");
  kernels->callback([options, &exit_code] { exit_code = run_bench_kernels(*options); });
}

}  // namespace protean
