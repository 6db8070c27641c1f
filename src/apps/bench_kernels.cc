#include "apps/bench_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "apps/machine.h"
#include "apps/machine_ceilings.h"
#include "apps/options.h"
#include "apps/stopwatch.h"
#include "apps/terminal.h"
#include "base/units.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"
#include "model/weights.h"

namespace protean {
namespace {

struct KernelBenchOptions {
  std::vector<std::string> like = {"1b", "8b"};
  std::vector<std::string> dtypes = {"bf16", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"};
  std::vector<int> rows = {1, 4, 16, 64, 256, 512};
  int threads = 0;
  int repeat = 7;
  int memory_mib = 512;
  bool cpu_time = false;
  bool json = false;
};

// A matrix that models of a size have.
struct MatrixCase {
  std::string model;
  std::string matrix;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

std::vector<MatrixCase> cases_like(const std::string& model) {
  if (model == "1b") {
    return {{model, "query", 2048, 2048},
            {model, "key", 512, 2048},
            {model, "up", 8192, 2048},
            {model, "down", 2048, 8192}};
  }
  return {{model, "query", 4096, 4096},
          {model, "key", 1024, 4096},
          {model, "up", 14336, 4096},
          {model, "down", 4096, 14336}};
}

struct KernelRow {
  MatrixCase matrix;
  std::string dtype;
  std::int64_t rows = 0;
  double time_us = 0;  // median
  double bytes = 0;    // of packed weights
  double operations = 0;
  bool integers = false;

  double read_fraction(const Ceilings& ceilings) const {
    return bytes / (time_us * 1e-6) / ceilings.read_bytes_per_s;
  }
  double operations_fraction(const Ceilings& ceilings) const {
    const bool int8 = integers && ceilings.int8_operations_per_s > 0;
    return operations / (time_us * 1e-6) /
           (int8 ? ceilings.int8_operations_per_s : ceilings.operations_per_s);
  }
};

// Times work and keeps the memory it runs over: as large as asked for, so that no weight is still
// in a cache when its turn comes again, and random.
class Bench {
 public:
  static Result<Bench> create(const KernelBenchOptions& options, int threads) {
    auto region = cpu::Region::map(std::int64_t{options.memory_mib} * kMiB);
    if (!region.ok()) {
      return region.error();
    }
    return Bench(options, threads, std::move(*region));
  }

  Ceilings measure_ceilings() {
    return protean::measure_ceilings(
        *team_, {region_.data(), static_cast<std::size_t>(region_.bytes())}, stopwatch_, repeat_);
  }

  Result<KernelRow> measure(const MatrixCase& matrix, const std::string& dtype, std::int64_t rows) {
    cpu::PackedMatrix packed{
        .format = weight_format(*parse_precision(dtype), StoredWeights().group),
        .outputs = matrix.outputs,
        .inputs = matrix.inputs};
    const std::int64_t copies = region_.bytes() / packed.bytes();
    if (copies < 2) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--memory {}: two copies of a matrix of {} must fit, or it stays in cache",
                        region_.bytes() / kMiB, format_bytes(packed.bytes()));
    }
    pack(packed, copies);
    std::vector<float> x = noise(rows * matrix.inputs);
    cpu::round_to(packed.format.inputs(), x);
    std::vector<float> out(static_cast<std::size_t>(rows * matrix.outputs));
    std::vector<std::byte> arranged(
        static_cast<std::size_t>(cpu::arranged_rows_bytes(rows, matrix.inputs)));
    // Small matrices are timed several at once, or the clock would be timed.
    constexpr std::int64_t kLeastWork = std::int64_t{1} << 26;
    const std::int64_t work = rows * matrix.outputs * matrix.inputs;
    const std::int64_t calls = std::clamp<std::int64_t>(kLeastWork / work, 1, copies);
    std::int64_t next = 0;
    const double seconds = median_s(stopwatch_, repeat_, [&] {
      for (std::int64_t call = 0; call < calls; ++call, next = (next + 1) % copies) {
        packed.data = region_.data() + next * packed.bytes();
        if (packed.format.int8_inputs()) {
          cpu::matmul(*team_, cpu::quantize_rows(*team_, x, packed, arranged), packed, out);
        } else {
          cpu::matmul(*team_, cpu::arrange_rows(*team_, x, packed, arranged), packed, out);
        }
      }
    });
    return KernelRow{matrix,
                     dtype,
                     rows,
                     seconds / static_cast<double>(calls) * 1e6,
                     static_cast<double>(packed.bytes()),
                     2.0 * static_cast<double>(work),
                     packed.format.int8_inputs()};
  }

 private:
  Bench(const KernelBenchOptions& options, int threads, cpu::Region region)
      : repeat_(options.repeat),
        stopwatch_(options.cpu_time, threads),
        team_(std::make_unique<cpu::Team>(threads)),
        region_(std::move(region)) {}

  std::vector<float> noise(std::int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<std::size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return uniform(random_); });
    return values;
  }

  // A panel of random weights, at every panel of every copy.
  void pack(cpu::PackedMatrix& packed, std::int64_t copies) {
    packed.data = region_.data();
    const std::vector<float> values = noise(32 * packed.inputs);
    const Status done = pack_rows(packed, 0, values);
    check(done.ok(), "numbers from -1 to 1 can be quantised");
    const std::int64_t bytes = packed.panel_bytes();
    for (std::int64_t panel = 1; panel < copies * packed.panels(); ++panel) {
      std::memcpy(region_.data() + panel * bytes, region_.data(), static_cast<std::size_t>(bytes));
    }
  }

  int repeat_;
  Stopwatch stopwatch_;
  std::unique_ptr<cpu::Team> team_;
  cpu::Region region_;
  std::minstd_rand random_{7};
};

void print_ceilings(const Ceilings& ceilings, int threads) {
  print_text(
      fmt::format("{} thread{}, {}: reads {:.1f} GB/s, multiplies {:.0f} GFLOP/s{}\n\n"
                  "{:5} {:6} {:>14} {:5} {:>5} {:>11} {:>9} {:>9} {:>7} {:>7}\n",
                  threads, threads == 1 ? "" : "s", multiplier_name(),
                  ceilings.read_bytes_per_s * 1e-9, ceilings.operations_per_s * 1e-9,
                  ceilings.int8_operations_per_s > 0
                      ? fmt::format(", int8 {:.0f} GOP/s", ceilings.int8_operations_per_s * 1e-9)
                      : "",
                  "like", "matrix", "outputs x in", "dtype", "rows", "time us", "MB", "GFLOP",
                  "% read", "% mult"));
}

void print_row(const KernelRow& row, const Ceilings& ceilings) {
  print_text(fmt::format(
      "{:5} {:6} {:>7}x{:<6} {:5} {:>5} {:>11.1f} {:>9.2f} {:>9.3f} {:>7.1f} {:>7.1f}\n",
      row.matrix.model, row.matrix.matrix, row.matrix.outputs, row.matrix.inputs, row.dtype,
      row.rows, row.time_us, row.bytes * 1e-6, row.operations * 1e-9,
      100 * row.read_fraction(ceilings), 100 * row.operations_fraction(ceilings)));
}

std::string json_of(const Ceilings& ceilings, const std::vector<KernelRow>& rows, int threads) {
  std::string text = fmt::format(
      R"({{"format":"protean-kernels/1","threads":{},"unit":"{}","read_bytes_per_s":{:.6g},"flops_per_s":{:.6g},"kernels":[)",
      threads, multiplier_name(), ceilings.read_bytes_per_s, ceilings.operations_per_s);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KernelRow& row = rows[i];
    text += fmt::format(
        R"({}{{"kernel":"matmul","like":"{}","matrix":"{}","outputs":{},"inputs":{},"dtype":"{}","rows":{},"time_us":{:.6g},"bytes":{:.0f},"operations":{:.0f},"read_fraction":{:.4f},"flops_fraction":{:.4f}}})",
        i == 0 ? "" : ",", row.matrix.model, row.matrix.matrix, row.matrix.outputs,
        row.matrix.inputs, row.dtype, row.rows, row.time_us, row.bytes, row.operations,
        row.read_fraction(ceilings), row.operations_fraction(ceilings));
  }
  return text + "]}\n";
}

int run_bench_kernels(const KernelBenchOptions& options) {
  const int threads = options.threads > 0 ? options.threads : this_machine().cores;
  auto bench = Bench::create(options, threads);
  if (!bench.ok()) {
    return exit_with(bench.error());
  }
  const Ceilings ceilings = bench->measure_ceilings();
  if (!options.json) {
    print_ceilings(ceilings, threads);
  }
  std::vector<KernelRow> measured;
  for (const std::string& model : options.like) {
    for (const MatrixCase& matrix : cases_like(model)) {
      for (const std::string& dtype : options.dtypes) {
        for (const int rows : options.rows) {
          auto row = bench->measure(matrix, dtype, rows);
          if (!row.ok()) {
            return exit_with(row.error());
          }
          if (!options.json) {
            print_row(*row, ceilings);
          }
          measured.push_back(*std::move(row));
        }
      }
    }
  }
  if (options.json) {
    print_text(json_of(ceilings, measured, threads));
  }
  return 0;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, int& exit_code) {
  CLI::App* kernels = bench.add_subcommand(
      "kernels", "time the matmul kernels beside the two ceilings of this machine");
  auto options = std::make_shared<KernelBenchOptions>();
  kernels->add_option("--like", options->like, "dimensions of these models: 1b, 8b")
      ->check(CLI::IsMember({"1b", "8b"}))
      ->capture_default_str();
  kernels->add_option("--dtype", options->dtypes, "precisions of the weights")
      ->check(CLI::IsMember({"f32", "bf16", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"}))
      ->capture_default_str();
  kernels->add_option("--rows", options->rows, "rows of activations: 1 is a decode step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  kernels->add_option("--threads", options->threads, "0 = one per core this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  kernels->add_option("--repeat", options->repeat, "times are medians of so many runs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  kernels
      ->add_option("--memory", options->memory_mib,
                   "MiB of weights to go through, well above the caches")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  kernels->add_flag("--cpu-time", options->cpu_time,
                    "time by the processor time used, for machines that have other work");
  kernels->add_flag("--json", options->json, "one JSON object instead of the table");
  kernels->callback([options, &exit_code] { exit_code = run_bench_kernels(*options); });
}

}  // namespace protean
