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
      bench.add_subcommand("kernels", "Time the kernels, next to this machine's ceilings");
  auto options = std::make_shared<KernelBenchOptions>();
  kernels->option_defaults()->group("Kernels");
  kernels->add_option("--kernels", options->kernels, "Kernels to time")
      ->check(one_of({"matmul", "attention", "elementwise"}))
      ->capture_default_str();
  kernels->add_option("--like", options->like, "Dimensions of models of these sizes")
      ->check(one_of({"1b", "8b"}))
      ->capture_default_str();
  kernels->add_option("--dtype", options->dtypes, "Precisions of the weights")
      ->type_name("PRECISION")
      ->check(one_of({"f32", "bf16", "s24", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"}))
      ->capture_default_str();
  kernels->add_option("--rows", options->rows, "Rows of activations; 1 is a decode step")
      ->check(whole_number(1, 1 << 16))
      ->capture_default_str();
  kernels->add_option("--kv", options->kv, "Precisions of the KV cache in attention")
      ->check(one_of({"bf16", "int8"}))
      ->capture_default_str();
  kernels->add_option("--context", options->context, "Tokens that attention reads")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  kernels->option_defaults()->group("Measuring");
  kernels->add_option("--repeat", options->repeat, "Runs of each kernel; its time is their median")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  kernels
      ->add_option("--memory", options->memory_mib,
                   "MiB of weights or KV to go through, well above the caches")
      ->check(whole_number(16, 1 << 20))
      ->capture_default_str();
  kernels->add_flag("--cpu-time", options->cpu_time,
                    "Measure processor time, for machines that have other work");
  kernels->add_flag("--json", options->json, "Print one JSON object instead of the table");
  add_compute_options(*kernels, options->compute);
  kernels->footer("Example: protean bench kernels --kernels matmul --like 1b --dtype bf16 w4");
  kernels->callback([options, &exit_code] { exit_code = run_bench_kernels(*options); });
}

}  // namespace protean
