#include "measure/kernel_bench.h"

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

#include "base/units.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/stopwatch.h"
#include "measure/time_attention.h"
#include "model/weights.h"

namespace protean {
namespace {

// The sizes of a model.
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

// Times kernels over random data in memory that is much larger than the caches, so that no weight
// is in a cache when it is read again.
class Bench {
 public:
  static Result<Bench> create(const KernelBenchOptions& options, const CpuShare& cpus) {
    auto region = cpu::Region::map(std::int64_t{options.memory_mib} * kMiB);
    if (!region.ok()) {
      return region.error();
    }
    return Bench(options, cpus, std::move(*region));
  }

  // Pins the calling thread like the others of the team.
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
    // Small matrices are timed several at a time: one takes too little for the clock.
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

  // Fills every panel of every copy with the same random values.
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

// Times attention in decode steps of one long and many shorter sequences and in a chunk of a
// prompt.
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

Status measure_rows(Bench& bench, const KernelBenchOptions& options, const TellRow& tell) {
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

}  // namespace

Result<KernelTable> measure_kernels(const KernelBenchOptions& options, const OnLine& on_line) {
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  auto bench = Bench::create(options, *cpus);
  if (!bench.ok()) {
    return bench.error();
  }
  const cpu::Seat seat = bench->take_seat();
  KernelTable table{.ceilings = bench->measure_ceilings(), .threads = cpus->threads};
  on_line(heading(table.ceilings, table.threads));
  const Status measured = measure_rows(*bench, options, [&](KernelRow row) {
    on_line(to_text(row, table.ceilings));
    table.rows.push_back(std::move(row));
  });
  return measured.ok() ? Result<KernelTable>(std::move(table)) : measured.error();
}

}  // namespace protean
