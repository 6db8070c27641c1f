// How far attention and the operations between matmuls are from what the machine can do. Every
// iteration measures the two ceilings right beside the kernel, and the medians give the percentages
// that are printed: of reading the bytes that must be read, of the multiply-adds that must be made
// by the unit that makes them: over a bf16 cache the machine's best, else f32 vectors.
// Times are processor time divided by threads, so that a shared machine distorts them little;
// "wall" is what passed meanwhile.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "device/cpu/attention.h"
#include "device/cpu/ceilings.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/memory.h"

namespace protean::cpu {
namespace {

using benchmark::Counter;

std::vector<float> random_floats(std::int64_t count) {
  std::minstd_rand random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return uniform(random); });
  return values;
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The machine's two limits, to be timed right beside a kernel.
class Ceilings {
 public:
  Ceilings(Team& team, MatmulUnit unit)
      : team_(team), unit_(unit), noise_(random_floats(kBytes / 4)) {}

  std::uint64_t read() { return read_memory(team_, std::as_bytes(std::span(noise_))); }
  static double read_bytes() { return kBytes; }

  float multiply_add() {
    constexpr std::int64_t kRounds = 20000;
    const MultiplyWork work = multiply_in_cache(team_, unit_, kRounds);
    flops_ = work.operations;
    return work.checksum;
  }
  double flops() const { return flops_; }

 private:
  static constexpr std::int64_t kBytes = std::int64_t{256} << 20;  // larger than caches
  Team& team_;
  MatmulUnit unit_;
  std::vector<float> noise_;
  double flops_ = 0;
};

// What a kernel cannot do without.
struct Work {
  double bytes = 0;
  double flops = 0;
  MatmulUnit unit = MatmulUnit::kVector;
};

// Runs `kernel` beside the ceilings and reports how it compares.
void compare(benchmark::State& state, Team& team, const Work& work,
             const std::function<void()>& kernel) {
  Ceilings ceilings(team, work.unit);
  std::vector<double> kernel_s;
  std::vector<double> wall_s;
  std::vector<double> read_s;
  std::vector<double> flops_s;
  const auto seconds = [&](auto&& run) {
    const double begin = processor_seconds();
    run();
    return (processor_seconds() - begin) / team.threads();
  };
  for (auto _ : state) {
    read_s.push_back(seconds([&] { benchmark::DoNotOptimize(ceilings.read()); }));
    flops_s.push_back(seconds([&] { benchmark::DoNotOptimize(ceilings.multiply_add()); }));
    const auto begin = std::chrono::steady_clock::now();
    kernel_s.push_back(seconds([&] { kernel(); }));
    wall_s.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state.SetIterationTime(kernel_s.back());
  }
  const double read_rate = ceilings.read_bytes() / median(read_s);
  const double flop_rate = ceilings.flops() / median(flops_s);
  const double kernel_time = median(kernel_s);
  state.counters["GB/s"] = work.bytes / kernel_time * 1e-9;
  state.counters["%read"] = 100 * work.bytes / kernel_time / read_rate;
  state.counters["GFLOP/s"] = work.flops / kernel_time * 1e-9;
  state.counters["%multiply"] = 100 * work.flops / kernel_time / flop_rate;
  state.counters["ceiling_GB/s"] = read_rate * 1e-9;
  state.counters["ceiling_GFLOP/s"] = flop_rate * 1e-9;
  state.counters["wall_us"] = median(wall_s) * 1e6;
}

struct Heads {
  int heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
};

// Sequences with a KV of so many layers that none is in a cache when its turn comes.
class Sequences {
 public:
  Sequences(const Heads& heads, KvElement element, int sequences, int context)
      : context_(context), blocks_((context + kBlock - 1) / kBlock) {
    layer_ = {.element = element,
              .kv_heads = heads.kv_heads,
              .head_dim = heads.head_dim,
              .block_tokens = kBlock};
    block_bytes_ = heads.kv_heads * layer_.slot_bytes();
    layers_ = std::max<int>(1, static_cast<int>(kMemoryBytes / kv_bytes(sequences)));
    layer_.block_stride_bytes = block_bytes_ * layers_;
    region_ = Region::map(layer_.block_stride_bytes * blocks_ * sequences).value();
    ids_.resize(static_cast<std::size_t>(blocks_) * static_cast<std::size_t>(sequences));
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::minstd_rand(5));
    Team team(1);
    const std::vector<float> kv =
        random_floats(std::int64_t{context} * heads.kv_heads * heads.head_dim);
    for (int i = 0; i < layers_; ++i) {
      for (int sequence = 0; sequence < sequences; ++sequence) {
        const AttentionSlice all{0, context, 0, table(sequence)};
        store_kv(team, layer(i), std::span(&all, 1), kv, kv);
      }
    }
  }

  int layers() const { return layers_; }
  KvLayer layer(int i) const {
    KvLayer layer = layer_;
    layer.base = region_.data() + i * block_bytes_;
    return layer;
  }
  std::span<const BlockId> table(int sequence) const {
    return std::span(ids_).subspan(static_cast<std::size_t>(sequence * blocks_),
                                   static_cast<std::size_t>(blocks_));
  }
  std::int64_t kv_bytes(int sequences) const { return block_bytes_ * blocks_ * sequences; }
  int context() const { return context_; }

 private:
  static constexpr int kBlock = 16;
  static constexpr std::int64_t kMemoryBytes = std::int64_t{256} << 20;
  int context_;
  int blocks_;
  int layers_ = 0;
  std::int64_t block_bytes_ = 0;
  KvLayer layer_;
  Region region_;
  std::vector<BlockId> ids_;
};

constexpr KvElement kElements[] = {KvElement::kF32, KvElement::kBf16, KvElement::kInt8};

// sequences, context, new rows of each, element, head_dim, heads per KV head, window, threads.
void attend(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  const auto context = static_cast<int>(state.range(1));
  const auto rows = static_cast<int>(state.range(2));
  const auto window = static_cast<int>(state.range(6));
  const Heads heads{.heads = 8 * static_cast<int>(state.range(5)),
                    .kv_heads = 8,
                    .head_dim = static_cast<int>(state.range(4))};
  const KvElement element = kElements[state.range(3)];
  const Sequences sequences(heads, element, count, context);
  Team team(static_cast<int>(state.range(7)));
  std::vector<AttentionSlice> slices;
  for (int i = 0; i < count; ++i) {
    slices.push_back({i * rows, rows, context - rows, sequences.table(i)});
  }
  const std::vector<float> q =
      random_floats(std::int64_t{count} * rows * heads.heads * heads.head_dim);
  std::vector<float> out(q.size());
  double pairs = 0;
  for (int position = context - rows; position < context; ++position) {
    pairs += window > 0 ? std::min(window, position + 1) : position + 1;
  }
  const double seen = window > 0 ? std::min(context, window + rows - 1) : context;
  const int layers = rows == 1 ? sequences.layers() : 1;
  compare(state, team,
          {.bytes = static_cast<double>(sequences.kv_bytes(count)) * seen / context * layers,
           .flops = pairs * count * heads.heads * heads.head_dim * 4 * layers,
           .unit = element == KvElement::kBf16 ? best_unit() : MatmulUnit::kVector},
          [&] {
            for (int layer = 0; layer < layers; ++layer) {
              attention(team, sequences.layer(layer), slices,
                        {.heads = heads.heads, .window = window}, {q, out});
            }
          });
}
BENCHMARK(attend)
    ->Args({1, 4096, 1, 1, 128, 4, 0, 1})
    ->Args({1, 4096, 1, 2, 128, 4, 0, 1})
    ->Args({1, 4096, 1, 1, 64, 4, 0, 1})
    ->Args({1, 4096, 1, 2, 64, 4, 0, 1})
    ->Args({1, 4096, 1, 1, 128, 1, 0, 1})
    ->Args({1, 4096, 1, 2, 128, 1, 0, 1})
    ->Args({1, 4096, 1, 1, 128, 4, 0, 2})
    ->Args({1, 4096, 1, 2, 128, 4, 0, 2})
    ->Args({16, 512, 1, 1, 128, 4, 0, 2})
    ->Args({1, 4096, 512, 1, 128, 4, 0, 1})
    ->Args({1, 4096, 512, 2, 128, 4, 0, 1})
    ->Args({1, 4096, 512, 1, 64, 4, 0, 1})
    ->Args({1, 4096, 512, 1, 128, 1, 0, 1})
    ->Args({1, 512, 512, 1, 128, 4, 0, 1})
    ->Args({1, 4096, 512, 1, 128, 4, 1024, 1})
    ->Args({1, 4096, 512, 1, 128, 4, 0, 2})
    ->ArgNames({"sequences", "context", "rows", "kv", "head_dim", "group", "window", "threads"})
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(15);

void elementwise(benchmark::State& state) {
  constexpr std::int64_t kWidth = 8192;
  constexpr std::int64_t kRows = 1024;
  Team team(1);
  std::vector<float> x = random_floats(kRows * kWidth);
  const std::vector<float> weight = random_floats(kWidth);
  std::vector<float> out(x.size());
  std::vector<int> positions(kRows);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<float> angles = random_floats(kRows * 64);
  const double row_bytes = static_cast<double>(x.size() * sizeof(float));
  compare(state, team, {.bytes = (state.range(0) == 2 ? 1 : 2) * row_bytes}, [&] {
    if (state.range(0) == 0) {
      rms_norm(team, x, {weight, 1e-5f}, Element::kBf16, out);
    } else if (state.range(0) == 1) {
      swiglu(team, x, x, Element::kBf16, out);
    } else {
      rope(team, x, kWidth / 128, positions, {angles, angles, 64, false});
    }
  });
}
BENCHMARK(elementwise)
    ->DenseRange(0, 2)
    ->ArgName("norm_swiglu_rope")
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(15);

}  // namespace
}  // namespace protean::cpu

BENCHMARK_MAIN();
