#include "apps/bench_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "apps/cpu_share.h"
#include "apps/machine.h"
#include "apps/machine_ceilings.h"
#include "apps/options.h"
#include "apps/stopwatch.h"
#include "apps/terminal.h"
#include "apps/time_attention.h"
#include "base/units.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"
#include "model/weights.h"

namespace protean {
namespace {

struct KernelBenchOptions {
  std::vector<std::string> kernels = {"matmul", "attention", "elementwise"};
  std::vector<std::string> like = {"1b", "8b"};
  std::vector<std::string> dtypes = {"bf16", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"};
  std::vector<int> rows = {1, 4, 16, 64, 256, 512};
  std::vector<std::string> kv = {"bf16", "int8"};
  int context = 4096;
  ComputeOptions compute;
  int repeat = 7;
  int memory_mib = 512;
  bool cpu_time = false;
  bool json = false;
};

// Sizes of a model.
struct Like {
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  AttentionHeads heads;
};

Like like(const std::string& name) {
  return name == "1b" ? Like{name, 2048, 8192, {.heads = 32, .kv_heads = 8, .head_dim = 64}}
                      : Like{name, 4096, 14336, {.heads = 32, .kv_heads = 8, .head_dim = 128}};
}

struct MatrixCase {
  std::string name;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

std::vector<MatrixCase> matrices_of(const Like& model) {
  return {{"query", model.hidden, model.hidden},
          {"key", std::int64_t{model.heads.kv_heads} * model.heads.head_dim, model.hidden},
          {"up", model.ffn, model.hidden},
          {"down", model.hidden, model.ffn}};
}

struct KernelRow {
  std::string like;
  std::string kernel;
  std::string shape;
  std::string dtype;
  std::int64_t rows = 0;  // of activations, of each sequence
  KernelTime time;
  bool integers = false;

  double read_fraction(const Ceilings& ceilings) const {
    return time.bytes / (time.us * 1e-6) / ceilings.read_bytes_per_s;
  }
  double operations_fraction(const Ceilings& ceilings) const {
    const bool int8 = integers && ceilings.int8_operations_per_s > 0;
    return time.operations / (time.us * 1e-6) /
           (int8 ? ceilings.int8_operations_per_s : ceilings.operations_per_s);
  }
};

// Times work and keeps the memory it runs over: as large as asked for, so that no weight is still
// in a cache when its turn comes again, and random.
class Bench {
 public:
  static Result<Bench> create(const KernelBenchOptions& options, const CpuShare& cpus) {
    auto region = cpu::Region::map(std::int64_t{options.memory_mib} * kMiB);
    if (!region.ok()) {
      return region.error();
    }
    return Bench(options, cpus, std::move(*region));
  }

  // Of the thread that measures, among the others.
  cpu::Seat take_seat() const { return team_->take_seat(); }

  Ceilings measure_ceilings() {
    return protean::measure_ceilings(*team_, memory(), stopwatch_, repeat_);
  }

  Result<KernelRow> matmul(const Like& model, const MatrixCase& matrix, const std::string& dtype,
                           std::int64_t rows) {
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
    // Like activations of a model, out begins a cache line.
    const std::int64_t arranged_bytes =
        round_up<std::int64_t>(cpu::arranged_rows_bytes(rows, matrix.inputs), 64);
    const std::int64_t out_floats = rows * matrix.outputs;
    const auto room = cpu::Region::map(arranged_bytes + out_floats * std::int64_t{sizeof(float)});
    if (!room.ok()) {
      return room.error();
    }
    const std::span arranged(room->data(), static_cast<std::size_t>(arranged_bytes));
    const std::span out(reinterpret_cast<float*>(room->data() + arranged_bytes),
                        static_cast<std::size_t>(out_floats));
    // Small matrices are timed several at once, or the clock would be timed.
    constexpr std::int64_t kLeastWork = std::int64_t{1} << 26;
    const std::int64_t work = rows * matrix.outputs * matrix.inputs;
    const std::int64_t calls = std::clamp<std::int64_t>(kLeastWork / work, 1, copies);
    std::int64_t next = 0;
    const double seconds = median_s(stopwatch_, repeat_, [&] {
      for (std::int64_t call = 0; call < calls; ++call, next = (next + 1) % copies) {
        packed.data = region_.data() + next * packed.bytes();
        if (packed.format.int8_inputs()) {
          cpu::matmul(*team_, cpu::quantize_rows(*team_, {.x = x}, packed, arranged), packed, out);
        } else {
          cpu::matmul(*team_, cpu::arrange_rows(*team_, x, packed, arranged), packed, out);
        }
      }
    });
    return KernelRow{model.name,
                     "matmul " + matrix.name,
                     fmt::format("{}x{}", matrix.outputs, matrix.inputs),
                     dtype,
                     rows,
                     {.us = seconds / static_cast<double>(calls) * 1e6,
                      .bytes = static_cast<double>(packed.bytes()),
                      .operations = 2.0 * static_cast<double>(work)},
                     packed.format.int8_inputs()};
  }

  Result<KernelRow> attention(const Like& model, const AttentionCase& asked) {
    const auto time = time_attention(asked, *team_, memory(), median());
    if (!time.ok()) {
      return time.error();
    }
    return KernelRow{model.name,
                     asked.rows == 1 ? "decode attention" : "prefill attention",
                     fmt::format("{}x {}/{}x{} @{}", asked.sequences, asked.heads.heads,
                                 asked.heads.kv_heads, asked.heads.head_dim, asked.context),
                     asked.kv == cpu::KvElement::kBf16 ? "bf16" : "int8",
                     asked.rows,
                     *time};
  }

  std::vector<KernelRow> elementwise(const Like& model, std::int64_t rows) {
    std::vector<KernelRow> measured;
    const auto row = [&](std::string kernel, std::int64_t width, int passes, const auto& work) {
      const auto bytes = static_cast<double>(rows * width * std::int64_t{sizeof(float)} * passes);
      measured.push_back({model.name,
                          std::move(kernel),
                          fmt::format("{}", width),
                          "f32",
                          rows,
                          {.us = 1e6 * median_s(stopwatch_, repeat_, work), .bytes = bytes}});
    };
    const std::int64_t head_dim = model.heads.head_dim;
    std::vector<float> x = noise(rows * std::max(model.hidden, model.ffn));
    const std::vector<float> other = x;
    const std::vector<float> weight = noise(model.hidden);
    const std::vector<float> angles = noise(rows * head_dim / 2);
    std::vector<int> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    const std::span hidden = std::span(x).first(static_cast<std::size_t>(rows * model.hidden));
    const std::span ffn = std::span(x).first(static_cast<std::size_t>(rows * model.ffn));
    row("norm", model.hidden, 2, [&] {
      cpu::rms_norm(*team_, hidden, {weight, 1e-5f}, cpu::Element::kBf16, hidden);
    });
    row("SwiGLU", model.ffn, 3, [&] { cpu::swiglu(*team_, ffn, other, cpu::Element::kBf16, ffn); });
    row("rope", model.hidden, 2, [&] {
      cpu::rope(*team_, hidden, static_cast<int>(model.hidden / head_dim), positions,
                {angles, angles, static_cast<int>(head_dim / 2), false});
    });
    return measured;
  }

 private:
  Bench(const KernelBenchOptions& options, const CpuShare& cpus, cpu::Region region)
      : repeat_(options.repeat),
        stopwatch_(options.cpu_time, cpus.threads),
        team_(std::make_unique<cpu::Team>(cpus.threads, cpus.where)),
        region_(std::move(region)) {}

  std::span<std::byte> memory() const {
    return {region_.data(), static_cast<std::size_t>(region_.bytes())};
  }

  MedianOf median() const {
    return
        [this](const std::function<void()>& work) { return median_s(stopwatch_, repeat_, work); };
  }

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
  print_text(fmt::format(
      "{} thread{}, {}: reads {:.1f} GB/s, multiplies {:.0f} GFLOP/s{}\n\n"
      "{:5} {:17} {:>18} {:5} {:>5} {:>11} {:>9} {:>9} {:>7} {:>7}\n",
      threads, threads == 1 ? "" : "s", multiplier_name(), ceilings.read_bytes_per_s * 1e-9,
      ceilings.operations_per_s * 1e-9,
      ceilings.int8_operations_per_s > 0
          ? fmt::format(", int8 {:.0f} GOP/s (operands in tiles only: {:.0f} and {:.0f})",
                        ceilings.int8_operations_per_s * 1e-9,
                        ceilings.tile_operations_per_s * 1e-9,
                        ceilings.tile_int8_operations_per_s * 1e-9)
          : "",
      "like", "kernel", "shape", "dtype", "rows", "time us", "MB", "GFLOP", "% read", "% mult"));
}

void print_kernel(const KernelRow& row, const Ceilings& ceilings) {
  print_text(
      fmt::format("{:5} {:17} {:>18} {:5} {:>5} {:>11.1f} {:>9.2f} {:>9.3f} {:>7.1f} {:>7.1f}\n",
                  row.like, row.kernel, row.shape, row.dtype, row.rows, row.time.us,
                  row.time.bytes * 1e-6, row.time.operations * 1e-9,
                  100 * row.read_fraction(ceilings), 100 * row.operations_fraction(ceilings)));
}

std::string json_of(const Ceilings& ceilings, const std::vector<KernelRow>& rows, int threads) {
  std::string text = fmt::format(
      R"({{"format":"protean-kernels/2","threads":{},"unit":"{}","read_bytes_per_s":{:.6g},"flops_per_s":{:.6g},"kernels":[)",
      threads, multiplier_name(), ceilings.read_bytes_per_s, ceilings.operations_per_s);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KernelRow& row = rows[i];
    text += fmt::format(
        R"({}{{"kernel":"{}","like":"{}","shape":"{}","dtype":"{}","rows":{},"time_us":{:.6g},"bytes":{:.0f},"operations":{:.0f},"read_fraction":{:.4f},"flops_fraction":{:.4f}}})",
        i == 0 ? "" : ",", row.kernel, row.like, row.shape, row.dtype, row.rows, row.time.us,
        row.time.bytes, row.time.operations, row.read_fraction(ceilings),
        row.operations_fraction(ceilings));
  }
  return text + "]}\n";
}

using TellRow = std::function<void(KernelRow)>;

Status measure_matmuls(Bench& bench, const KernelBenchOptions& options, const Like& model,
                       const TellRow& tell) {
  for (const MatrixCase& matrix : matrices_of(model)) {
    for (const std::string& dtype : options.dtypes) {
      for (const int rows : options.rows) {
        auto row = bench.matmul(model, matrix, dtype, rows);
        if (!row.ok()) {
          return row.error();
        }
        tell(*std::move(row));
      }
    }
  }
  return {};
}

// A decode step of one long sequence and of many shorter ones, a chunk of a long prompt.
Status measure_attention(Bench& bench, const KernelBenchOptions& options, const Like& model,
                         const TellRow& tell) {
  constexpr int kSequences = 16;
  const int context = options.context;
  for (const std::string& kv : options.kv) {
    AttentionCase one{.heads = model.heads,
                      .kv = kv == "bf16" ? cpu::KvElement::kBf16 : cpu::KvElement::kInt8,
                      .context = context};
    AttentionCase many = one;
    many.sequences = kSequences;
    many.context = std::max(1, context / kSequences);
    AttentionCase prompt = one;
    prompt.rows = std::min(512, context);
    for (const AttentionCase& asked : {one, many, prompt}) {
      auto row = bench.attention(model, asked);
      if (!row.ok()) {
        return row.error();
      }
      tell(*std::move(row));
    }
  }
  return {};
}

Status measure_all(Bench& bench, const KernelBenchOptions& options, const TellRow& tell) {
  const auto wanted = [&](std::string_view kernel) {
    return std::find(options.kernels.begin(), options.kernels.end(), kernel) !=
           options.kernels.end();
  };
  for (const std::string& name : options.like) {
    const Like model = like(name);
    if (wanted("matmul")) {
      if (Status done = measure_matmuls(bench, options, model, tell); !done.ok()) {
        return done;
      }
    }
    if (wanted("attention")) {
      if (Status done = measure_attention(bench, options, model, tell); !done.ok()) {
        return done;
      }
    }
    if (wanted("elementwise")) {
      const int rows = *std::max_element(options.rows.begin(), options.rows.end());
      for (KernelRow& row : bench.elementwise(model, rows)) {
        tell(std::move(row));
      }
    }
  }
  return {};
}

int run_bench_kernels(const KernelBenchOptions& options) {
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return exit_with(cpus.error());
  }
  auto bench = Bench::create(options, *cpus);
  if (!bench.ok()) {
    return exit_with(bench.error());
  }
  const cpu::Seat seat = bench->take_seat();
  const Ceilings ceilings = bench->measure_ceilings();
  if (!options.json) {
    print_ceilings(ceilings, cpus->threads);
  }
  std::vector<KernelRow> measured;
  const Status done = measure_all(*bench, options, [&](KernelRow row) {
    if (!options.json) {
      print_kernel(row, ceilings);
    }
    measured.push_back(std::move(row));
  });
  if (!done.ok()) {
    return exit_with(done.error());
  }
  if (options.json) {
    print_text(json_of(ceilings, measured, cpus->threads));
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
