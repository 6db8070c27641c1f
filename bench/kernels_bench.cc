// How far the CPU kernels are from what the machine can do: GFLOP/s and bytes of weights per
// second, on `threads` threads.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/cpu/ceilings.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"

namespace protean::cpu {
namespace {

using benchmark::Counter;

std::vector<float> random_floats(std::int64_t count) {
  std::minstd_rand random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = uniform(random);
  }
  return values;
}

void report(benchmark::State& state, double flops, double bytes) {
  state.counters["FLOP/s"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["B/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
}

Region random_memory(std::int64_t bytes) {
  Region region = Region::map(bytes).value();
  std::minstd_rand random(7);
  auto* const words = reinterpret_cast<std::uint32_t*>(region.data());
  for (std::int64_t i = 0; i < bytes / 4; ++i) {
    words[i] = static_cast<std::uint32_t>(random()) * 2654435761U;
  }
  return region;
}

// Memory bandwidth: the roof of a decode step.
void read_roof(benchmark::State& state) {
  Team team(static_cast<int>(state.range(0)));
  constexpr std::int64_t kBytes = 256 << 20;
  const Region region = random_memory(kBytes);
  const std::span<const std::byte> memory(region.data(), static_cast<std::size_t>(kBytes));
  for (auto _ : state) {
    benchmark::DoNotOptimize(read_memory(team, memory));
  }
  report(state, 0, kBytes);
}
BENCHMARK(read_roof)->Arg(1)->Arg(2)->ArgName("threads")->UseRealTime();

// Arithmetic in L1: the roof of a prefill.
void multiply_roof(benchmark::State& state) {
  Team team(static_cast<int>(state.range(0)));
  double operations = 0;
  for (auto _ : state) {
    const MultiplyWork work = multiply_in_cache(team, best_unit(), 10000);
    operations = work.operations;
    benchmark::DoNotOptimize(work.checksum);
  }
  report(state, operations, 0);
}
BENCHMARK(multiply_roof)->Arg(1)->Arg(2)->ArgName("threads")->UseRealTime();

// One panel of random weights.
void pack_random_panel(const PackedMatrix& matrix) {
  const std::vector<float> values = random_floats(32 * matrix.inputs);
  if (!matrix.format.quantized()) {
    pack_panel(matrix, 0, values.data(), 32);
    return;
  }
  QuantizedRows rows{
      .bits = matrix.format.bits(), .group = matrix.format.group, .inputs = matrix.inputs};
  std::vector<std::uint8_t> codes(values.size());
  std::transform(values.begin(), values.end(), codes.begin(), [&](float value) {
    return static_cast<std::uint8_t>((value + 1) / 2 * static_cast<float>(1 << rows.bits));
  });
  const std::vector<float> scales(static_cast<std::size_t>(32 * rows.groups()), 0.0625f);
  const std::vector<float> offsets(scales.size(),
                                   -0.0625f * static_cast<float>(1 << (rows.bits - 1)));
  rows.codes = codes;
  rows.scales = scales;
  rows.offsets = offsets;
  pack_panel(matrix, 0, rows);
}

// Enough matrices for none of them to still be in a cache when its turn comes again.
void matmul_rows(benchmark::State& state) {
  const WeightFormat formats[] = {{.kind = WeightKind::kF32},
                                  {.kind = WeightKind::kBf16},
                                  {.kind = WeightKind::kW8},
                                  {.kind = WeightKind::kW4, .symmetric = false},
                                  {.kind = WeightKind::kW3, .symmetric = false}};
  const std::int64_t m = state.range(1);
  constexpr std::int64_t kInputs = 2048, kOutputs = 8192, kBytes = 128 << 20;
  Team team(static_cast<int>(state.range(2)));
  PackedMatrix matrix{.format = formats[state.range(0)], .outputs = kOutputs, .inputs = kInputs};
  const std::int64_t matrices = (kBytes + matrix.bytes() - 1) / matrix.bytes();
  Region region = Region::map(matrix.bytes() * matrices).value();
  matrix.data = region.data();
  pack_random_panel(matrix);
  for (std::int64_t panel = 1; panel < matrix.panels() * matrices; ++panel) {
    std::memcpy(region.data() + panel * matrix.panel_bytes(), region.data(),
                static_cast<std::size_t>(matrix.panel_bytes()));
  }
  std::vector<float> x = random_floats(m * kInputs);
  round_to(matrix.format.inputs(), x);
  std::vector<std::byte> arranged(static_cast<std::size_t>(arranged_rows_bytes(m, kInputs)));
  std::vector<float> out(static_cast<std::size_t>(m * kOutputs));
  std::int64_t next = 0;
  for (auto _ : state) {
    matrix.data = region.data() + next * matrix.bytes();
    next = (next + 1) % matrices;
    matmul(team, arrange_rows(team, x, matrix, arranged), matrix, out);
  }
  report(state, 2.0 * static_cast<double>(m * kInputs * kOutputs),
         static_cast<double>(matrix.bytes()));
}
BENCHMARK(matmul_rows)
    ->ArgsProduct({{1, 2, 3, 4, 0}, {1, 2, 4, 8, 16, 64, 256}, {1, 2}})
    ->ArgNames({"format", "m", "threads"})
    ->UseRealTime();

// What handing out a batch costs when nobody has to be woken up.
void empty_batch(benchmark::State& state) {
  Team team(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    team.run(state.range(0), [](std::int64_t, int) {});
  }
}
BENCHMARK(empty_batch)->Arg(1)->Arg(2)->ArgName("threads")->UseRealTime();

}  // namespace
}  // namespace protean::cpu

BENCHMARK_MAIN();
