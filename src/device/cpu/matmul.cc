#include "device/cpu/matmul.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul_int8.h"
#include "device/cpu/matmul_part.h"
#include "device/cpu/matmul_tiles.h"
#include "device/cpu/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/interleave-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef PROTEAN_DEVICE_CPU_MATMUL_ONCE
#define PROTEAN_DEVICE_CPU_MATMUL_ONCE

namespace protean::cpu {

constexpr int kMaxTileRows = 12;

}  // namespace protean::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Accumulators of a tile must leave registers for weights and a broadcast input.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
static_assert(kTileRows <= kMaxTileRows);
// Inputs multiplied before the next tile of rows: their weights stay in L1 for all of them, as f32,
// and the rows' inputs in L2.
constexpr std::int64_t kChunk = 256;
constexpr std::int64_t kSingleTileChunk = 1024;
static_assert(kChunk * kMaxPartRows >= kSingleTileChunk * kMaxTileRows, "one buffer serves both");
// Up to so many rows read codes straight from the panel; for more, unpacking them first costs less.
constexpr int kMaxCodeRows = 2;

// How many vectors of outputs a tile spans: few rows need many, or each sum's latency would set the
// pace.
constexpr int tile_vecs(int rows) {
  if (kLanes == 16) {
    return rows <= 2 ? 8 : rows <= 6 ? 4 : 2;
  }
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// What a tile multiplies: inputs of R rows, interleaved [input][R], whole blocks of them and at
// most one group, and what it adds to. x_sums are the rows' sums over the group.
struct TileTask {
  const float* x = nullptr;
  const float* x_sums = nullptr;  // only where weights have offsets
  std::int64_t inputs = 0;
  float* sums = nullptr;
  std::int64_t row_stride = 0;
};

// Asks for the line that is needed kAhead bytes later. A short run of lines in each of several
// panels is too little for the hardware to notice in time.
HWY_INLINE void prefetch_line(const std::byte* line) {
  constexpr std::size_t kAhead = 8192;
  hwy::Prefetch(line + kAhead);
}

template <int R, int V, class Lines, int j>
HWY_INLINE void multiply_input(const float* x, const std::byte* const* lines, Vec table,
                               Vec (&tile)[R][V]) {
  Vec weights[V];
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    weights[v] = Lines::template value<j>(lines[v], table);
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    const Vec input = hn::Set(Floats(), x[j * R + r]);
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      tile[r][v] = hn::MulAdd(input, weights[v], tile[r][v]);
    }
  }
}

template <int R, int V, class Lines, int... j>
HWY_INLINE void multiply_inputs(const float* x, const std::byte* const* lines, Vec (&tile)[R][V],
                                std::integer_sequence<int, j...> /*inputs of a line*/) {
  const Vec table = Lines::table();
  (multiply_input<R, V, Lines, j>(x, lines, table, tile), ...);
}

// R rows times V vectors of outputs. With kScaled the sums over codes are scaled once here.
template <int R, int V, class Lines, bool kScaled>
HWY_NOINLINE void multiply_tile(const TileTask& task, const std::byte* const* lines,
                                const std::byte* const* scales) {
  const Floats floats;
  Vec tile[R][V];
  const std::byte* line[V];
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    line[v] = lines[v];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      tile[r][v] = kScaled ? hn::Zero(floats)
                           : hn::LoadU(floats, task.sums + r * task.row_stride + v * kLanes);
    }
  }
  const float* x = task.x;
  for (std::int64_t i = 0; i < task.inputs; i += Lines::kInputs) {
    multiply_inputs<R, V, Lines>(x, line, tile, std::make_integer_sequence<int, Lines::kInputs>());
    x += R * Lines::kInputs;
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      if constexpr (Lines::kPrefetched && R > 2) {
        prefetch_line(line[v]);
      }
      line[v] += Lines::kBytes;
    }
  }
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    [[maybe_unused]] const Vec scale = kScaled ? load_scales(scales[v]) : hn::Zero(floats);
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      float* const to = task.sums + r * task.row_stride + v * kLanes;
      Vec sum = tile[r][v];
      if constexpr (kScaled) {
        sum = hn::MulAdd(scale, sum, hn::LoadU(floats, to));
        if (task.x_sums != nullptr) {
          const Vec offset = load_scales(scales[v] + std::ptrdiff_t{kPanel} * 2);
          sum = hn::MulAdd(offset, hn::Set(floats, task.x_sums[r]), sum);
        }
      }
      hn::StoreU(sum, floats, to);
    }
  }
}

// A chunk of inputs as the kernels read it. Without scales a chunk is one group.
struct Chunk {
  std::int64_t inputs = 0;  // whole blocks
  std::int64_t group_inputs = 0;
  std::int64_t group_bytes = 0;
  std::int64_t scale_bytes = 0;
  std::int64_t panel_bytes = 0;
  const std::byte* panels = nullptr;  // the chunk's first group in the part's first panel
};

// Some rows of a part over one chunk of inputs, straight from the panels.
struct Strip {
  const float* x = nullptr;       // interleaved
  const float* x_sums = nullptr;  // [groups][rows]; null without offsets
  const Chunk* chunk = nullptr;
  int vecs = 0;  // of outputs
  float* sums = nullptr;
};

template <int R, int V, class Lines, bool kScaled>
void multiply_vecs(const Strip& strip, int first_vec) {
  const Chunk& chunk = *strip.chunk;
  const std::byte* lines[V];
  const std::byte* scales[V];
  for (int v = 0; v < V; ++v) {
    const int output = (first_vec + v) % kPanelVecs * kLanes;
    const std::byte* const panel = chunk.panels + (first_vec + v) / kPanelVecs * chunk.panel_bytes;
    scales[v] = panel + std::ptrdiff_t{output} * 2;
    lines[v] = panel + chunk.scale_bytes + std::ptrdiff_t{output} * Lines::kOutputBytes;
  }
  TileTask task{strip.x, strip.x_sums, 0, strip.sums + first_vec * kLanes,
                std::int64_t{strip.vecs} * kLanes};
  for (std::int64_t first = 0; first < chunk.inputs; first += chunk.group_inputs) {
    task.inputs = std::min(chunk.group_inputs, chunk.inputs - first);
    multiply_tile<R, V, Lines, kScaled>(task, lines, scales);
    task.x += R * task.inputs;
    task.x_sums += task.x_sums == nullptr ? 0 : R;
    for (int v = 0; v < V; ++v) {
      lines[v] += chunk.group_bytes;
      scales[v] += chunk.group_bytes;
    }
  }
}

template <int R, class Lines, bool kScaled>
void multiply_strip(const Strip& strip) {
  constexpr int V = tile_vecs(R);
  int vec = 0;
  for (; vec + V <= strip.vecs; vec += V) {
    multiply_vecs<R, V, Lines, kScaled>(strip, vec);
  }
  for (; vec < strip.vecs; vec += 2) {
    multiply_vecs<R, 2, Lines, kScaled>(strip, vec);
  }
}

// Some rows of a part times one panel of one group that was unpacked to f32 `lines`.
struct Block {
  TileTask task;
  const std::byte* lines = nullptr;
  const std::byte* scales = nullptr;
};

template <int R, bool kScaled>
void multiply_block(const Block& block) {
  constexpr int V = std::min(tile_vecs(R), kPanelVecs);
  TileTask task = block.task;
  for (int vec = 0; vec < kPanelVecs; vec += V) {
    const std::byte* lines[V];
    const std::byte* scales[V];
    for (int v = 0; v < V; ++v) {
      lines[v] = block.lines + std::ptrdiff_t{vec + v} * kLanes * UnpackedLines::kOutputBytes;
      scales[v] = block.scales + std::ptrdiff_t{vec + v} * kLanes * 2;
    }
    task.sums = block.task.sums + vec * kLanes;
    multiply_tile<R, V, UnpackedLines, kScaled>(task, lines, scales);
  }
}

// A row's sum over a group's inputs, in an order that depends on nothing else.
inline float sum_inputs(const float* x, std::int64_t inputs) {
  const Floats floats;
  Vec sum = hn::Zero(floats);
  std::int64_t i = 0;
  for (; i + kLanes <= inputs; i += kLanes) {
    sum = hn::Add(sum, hn::LoadU(floats, x + i));
  }
  float total = hn::GetLane(hn::SumOfLanes(floats, sum));
  for (; i < inputs; ++i) {
    total += x[i];
  }
  return total;
}

// What a part needs for as long as it runs; half a MiB of stack.
struct PartBuffers {
  alignas(64) float sums[kMaxPartRows * kMaxPartPanels * kPanel];
  alignas(64) float x[kMaxPartRows * kChunk];
  alignas(64) float x_sums[kSingleTileChunk / PackedMatrix::kInputBlock * kMaxPartRows];
  alignas(64) float lines[kChunk * kPanel];
};

// Inputs [first, first + count) of rows, padded with zeros to whole blocks.
struct InputRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::int64_t group = 0;   // whose sums are wanted; 0: none
  float* x = nullptr;       // where they go: all rows' inputs, tile by tile
  float* x_sums = nullptr;  // [groups][rows]
};

// Some rows of a part, as one tile reads them.
struct TileRows {
  const float* x = nullptr;  // of the part
  std::int64_t stride = 0;
  std::ptrdiff_t first = 0;
  int count = 0;
};

inline void arrange_rows(const TileRows& rows, const InputRange& range) {
  const float* const x = rows.x + rows.first * rows.stride + range.first;
  float* const to = range.x + rows.first * range.padded;
  interleave_rows(x, rows.stride, rows.count, range.count, to);
  std::fill(to + range.count * rows.count, to + range.padded * rows.count, 0.0f);
  if (range.group == 0) {
    return;
  }
  float* sum = range.x_sums + rows.first;
  for (std::int64_t first = 0; first < range.count; first += range.group) {
    const std::int64_t count = std::min(range.group, range.count - first);
    for (int r = 0; r < rows.count; ++r) {
      *sum++ = sum_inputs(x + r * rows.stride + first, count);
    }
  }
}

template <class Lines, bool kScaled, int... kBefore>
void multiply_rows(int rows, const Strip& strip,
                   std::integer_sequence<int, kBefore...> /*row counts - 1*/) {
  using Multiply = void (*)(const Strip&);
  static constexpr Multiply kByRows[] = {&multiply_strip<kBefore + 1, Lines, kScaled>...};
  kByRows[rows - 1](strip);
}

template <bool kScaled, int... kBefore>
void multiply_block_rows(int rows, const Block& block,
                         std::integer_sequence<int, kBefore...> /*row counts - 1*/) {
  using Multiply = void (*)(const Block&);
  static constexpr Multiply kByRows[] = {&multiply_block<kBefore + 1, kScaled>...};
  kByRows[rows - 1](block);
}

// Panels in chunks, all inputs of a group before the next.
inline Chunk chunk_at(const PackedMatrix& weights, std::int64_t first_panel, std::int64_t first,
                      std::int64_t inputs) {
  const std::int64_t input_bytes = std::int64_t{kPanel} * weights.format.bits() / 8;
  Chunk chunk{.inputs = inputs,
              .group_inputs = inputs,
              .group_bytes = inputs * input_bytes,
              .scale_bytes = weights.scale_bytes(),
              .panel_bytes = weights.panel_bytes()};
  std::int64_t before = first * input_bytes;
  if (weights.format.quantized()) {
    chunk.group_inputs = weights.format.group;
    chunk.group_bytes = weights.group_bytes();
    before = first / chunk.group_inputs * chunk.group_bytes;
  }
  chunk.panels = weights.data + first_panel * chunk.panel_bytes + before;
  return chunk;
}

inline std::int64_t summed_group(const WeightFormat& format) {
  return format.quantized() && !format.symmetric ? format.group : 0;
}

// Few rows: each weight is read once, in the order of memory.
template <class Lines, bool kScaled, int kMaxRows>
void multiply_few(const MatmulOperands& operands, const MatmulPart& part, PartBuffers& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const float* const x = operands.x + part.first_row * weights.inputs;
  const std::int64_t padded = weights.padded_inputs();
  const std::int64_t group = summed_group(weights.format);
  const bool direct = part.rows == 1 && padded == weights.inputs && group == 0;
  const std::int64_t step = direct ? padded : kSingleTileChunk;
  for (std::int64_t first = 0; first < padded; first += step) {
    const Chunk chunk = chunk_at(weights, part.first_panel, first, std::min(step, padded - first));
    if (!direct) {
      arrange_rows({x, weights.inputs, 0, part.rows},
                   {first, std::min(step, weights.inputs - first), chunk.inputs, group, buffers.x,
                    buffers.x_sums});
    }
    const Strip strip{direct ? x : buffers.x, group == 0 ? nullptr : buffers.x_sums, &chunk,
                      part.panels * kPanelVecs, buffers.sums};
    multiply_rows<Lines, kScaled>(part.rows, strip, std::make_integer_sequence<int, kMaxRows>());
  }
}

// One run of a panel times all rows: what is unpacked at once and stays in L1 meanwhile.
struct PanelRun {
  const std::byte* packed = nullptr;
  std::int64_t scale_bytes = 0;
  float* unpacked = nullptr;  // [inputs][32]
};

template <class Lines, bool kScaled>
void multiply_run(const PanelRun& weights, const Tiles& tiles, const InputRange& run,
                  const Block& to) {
  Block block = to;
  block.lines = weights.packed;
  block.scales = weights.packed;
  if constexpr (!std::is_same_v<Lines, F32Lines>) {
    unpack_lines<Lines>(weights.packed + weights.scale_bytes, run.padded, weights.unpacked);
    block.lines = reinterpret_cast<const std::byte*>(weights.unpacked);
  }
  block.task.inputs = run.padded;
  for (int tile = 0; tile < tiles.count; ++tile) {
    const std::ptrdiff_t begin = tiles.begin(tile);
    block.task.x = run.x + begin * run.padded;
    block.task.x_sums = run.group == 0 ? nullptr : run.x_sums + begin;
    block.task.sums = to.task.sums + begin * to.task.row_stride;
    multiply_block_rows<kScaled>(tiles.size(tile), block,
                                 std::make_integer_sequence<int, kTileRows>());
  }
}

// Many rows: a panel's run becomes f32 once for all of them.
template <class Lines, bool kScaled>
void multiply_many(const MatmulOperands& operands, const MatmulPart& part, PartBuffers& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const float* const x = operands.x + part.first_row * weights.inputs;
  const std::int64_t padded = weights.padded_inputs();
  const std::int64_t group = summed_group(weights.format);
  const std::int64_t run_inputs = kScaled ? weights.format.group : kChunk;
  // As much of a panel as the rows' inputs have room for: it is read from memory in one go.
  const std::int64_t step = std::clamp(kMaxPartRows / part.rows * kChunk, kChunk, kSingleTileChunk);
  const Tiles tiles{part.rows, ceil_div(part.rows, kTileRows)};
  const auto run_at = [&](std::int64_t first, std::int64_t from) {
    return InputRange{from,
                      std::min(run_inputs, weights.inputs - from),
                      std::min(run_inputs, padded - from),
                      group,
                      buffers.x + (from - first) * part.rows,
                      buffers.x_sums + (from - first) / run_inputs * part.rows};
  };
  for (std::int64_t first = 0; first < padded; first += step) {
    const std::int64_t end = std::min(first + step, padded);
    for (std::int64_t from = first; from < end; from += run_inputs) {
      for (int tile = 0; tile < tiles.count; ++tile) {
        arrange_rows({x, weights.inputs, tiles.begin(tile), tiles.size(tile)}, run_at(first, from));
      }
    }
    for (int panel = 0; panel < part.panels; ++panel) {
      const Block to{.task = {.sums = buffers.sums + std::ptrdiff_t{panel} * part.rows * kPanel,
                              .row_stride = kPanel}};
      for (std::int64_t from = first; from < end; from += run_inputs) {
        const Chunk chunk = chunk_at(weights, part.first_panel + panel, from, run_inputs);
        multiply_run<Lines, kScaled>({chunk.panels, chunk.scale_bytes, buffers.lines}, tiles,
                                     run_at(first, from), to);
      }
    }
  }
}

template <class Lines, bool kScaled>
void multiply_part(const MatmulOperands& operands, const MatmulPart& part) {
  // f32 needs no unpacking, and is for tests of the others.
  constexpr bool kF32 = std::is_same_v<Lines, F32Lines>;
  constexpr int kFewRows = kF32 ? 1 : kScaled ? kMaxCodeRows : kTileRows;
  PartBuffers buffers;
  std::fill_n(buffers.sums, part.rows * part.panels * kPanel, 0.0f);
  if (part.rows <= kFewRows) {
    multiply_few<Lines, kScaled, kFewRows>(operands, part, buffers);
    finish_part(operands, part, PartSums::by_row(buffers.sums, part));
  } else {
    multiply_many<Lines, kScaled>(operands, part, buffers);
    finish_part(operands, part, PartSums::by_panel(buffers.sums, part));
  }
}

void multiply(const MatmulOperands& operands, const MatmulPart& part) {
  switch (operands.weights->format.kind) {
    case WeightKind::kF32:
      return multiply_part<F32Lines, false>(operands, part);
    case WeightKind::kBf16:
      return multiply_part<Bf16Lines, false>(operands, part);
    case WeightKind::kW8:
      return multiply_part<W8Lines, true>(operands, part);
    case WeightKind::kW4:
      return multiply_part<W4Lines, true>(operands, part);
    case WeightKind::kW3:
      return multiply_part<W3Lines, true>(operands, part);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(multiply);

// Below this many multiply-adds, waking a thread costs more than it saves.
constexpr std::int64_t kSerialWork = 1 << 16;
// Parts per thread when there is work for that many: the slowest thread then waits for a quarter.
constexpr std::int64_t kPartsPerThread = 4;

// How a product is cut into parts; what is computed does not depend on it.
struct Cut {
  std::int64_t row_parts = 1;
  std::int64_t panels_per_part = 1;
  std::int64_t panel_parts = 1;
};

// What a kernel takes at most, and how many rows it needs at least to be worth a part of its own.
struct CutLimits {
  std::int64_t rows = kMaxPartRows;
  std::int64_t panels = kMaxPartPanels;
  std::int64_t tile_rows = kMaxTileRows;
};

Cut cut(std::int64_t m, std::int64_t panels, int threads, const CutLimits& limits) {
  const std::int64_t wanted = kPartsPerThread * threads;
  Cut cut;
  cut.row_parts = std::max(ceil_div(m, limits.rows),
                           std::min(ceil_div(m, limits.tile_rows), ceil_div(wanted, panels)));
  while (cut.panels_per_part < limits.panels &&
         cut.row_parts * ceil_div(panels, cut.panels_per_part * 2) >= wanted) {
    cut.panels_per_part *= 2;
  }
  cut.panel_parts = ceil_div(panels, cut.panels_per_part);
  return cut;
}

// AMX serves every number of rows, one too: its sums are in another order than the vectors', and a
// row's bits must not depend on the rows beside it. Nothing is lost by that, for what few rows wait
// for is memory.
MatmulUnit unit_for(const WeightFormat& format, MatmulUnit wanted) {
  if (format.kind == WeightKind::kF32) {
    return MatmulUnit::kVector;
  }
  if (wanted != MatmulUnit::kBest) {
    return wanted;
  }
  return best_unit();
}

void multiply_all(Team& team, std::int64_t m, const MatmulOperands& operands, MatmulUnit unit) {
  const PackedMatrix& weights = *operands.weights;
  check(std::ssize(operands.out) == m * weights.outputs,
        "out is not as many rows of the matrix's outputs");
  if (m == 0) {
    return;
  }
  const std::int64_t panels = weights.panels();
  const bool serial = m * weights.outputs * weights.inputs < kSerialWork;
  const Cut parts =
      cut(m, panels, serial ? 1 : team.threads(),
          unit == MatmulUnit::kVector ? CutLimits()
                                      : CutLimits{kMaxTiledRows, kMaxTiledPanels, 2 * kTileRows16});
  const auto run_part = [&](std::int64_t index, int) {
    // Neighbouring tasks share their weights.
    const std::int64_t row_part = index % parts.row_parts;
    const std::int64_t first_row = m * row_part / parts.row_parts;
    const std::int64_t end_row = m * (row_part + 1) / parts.row_parts;
    const std::int64_t first_panel = index / parts.row_parts * parts.panels_per_part;
    const std::int64_t end_panel = std::min(first_panel + parts.panels_per_part, panels);
    const MatmulPart part{first_row, static_cast<int>(end_row - first_row), first_panel,
                          static_cast<int>(end_panel - first_panel)};
    if (operands.int8 != nullptr) {
      multiply_int8(operands, part);
    } else if (unit == MatmulUnit::kVector) {
      HWY_DYNAMIC_DISPATCH(multiply)(operands, part);
    } else {
      multiply_tiled(operands, part, unit == MatmulUnit::kEmulatedAmx);
    }
  };
  const std::int64_t tasks = parts.row_parts * parts.panel_parts;
  if (serial) {
    for (std::int64_t i = 0; i < tasks; ++i) {
      run_part(i, 0);
    }
  } else {
    team.run(tasks, run_part);
  }
}

struct FinishRun {
  const float* sums = nullptr;
  const float* bias = nullptr;
  bool accumulate = false;
};

// One of the loops for each case: a compiler makes vectors of those.
void finish_run(const FinishRun& run, float* __restrict out, std::int64_t count) {
  const float* __restrict const sums = run.sums;
  const float* __restrict const bias = run.bias;
  if (bias == nullptr && !run.accumulate) {
    std::copy_n(sums, count, out);
  } else if (bias == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] += sums[i];
    }
  } else if (!run.accumulate) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = sums[i] + bias[i];
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] += sums[i] + bias[i];
    }
  }
}

}  // namespace

MatmulUnit best_unit() {
  return amx_available() ? MatmulUnit::kAmx : MatmulUnit::kVector;
}

void finish_part(const MatmulOperands& operands, const MatmulPart& part, const PartSums& sums) {
  const std::int64_t outputs = operands.weights->outputs;
  for (int r = 0; r < part.rows; ++r) {
    for (int panel = 0; panel < part.panels; ++panel) {
      const std::int64_t first = (part.first_panel + panel) * PackedMatrix::kPanel;
      const std::int64_t count = std::min<std::int64_t>(PackedMatrix::kPanel, outputs - first);
      const float* const from = sums.data + r * sums.row_stride + panel * sums.panel_stride;
      float* const out = operands.out.data() + (part.first_row + r) * outputs + first;
      const float* const bias =
          operands.options.bias == nullptr ? nullptr : operands.options.bias + first;
      finish_run({from, bias, operands.options.accumulate}, out, count);
    }
  }
}

void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const std::int64_t m = std::ssize(x) / weights.inputs;
  check(std::ssize(x) == m * weights.inputs, "x is not rows of the matrix's inputs");
  check(!weights.format.int8_inputs, "weights that want integers get them");
  multiply_all(team, m, {x.data(), nullptr, &weights, out, options},
               unit_for(weights.format, options.unit));
}

void matmul(Team& team, const Int8Rows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  check(x.inputs == weights.inputs && x.format == weights.format,
        "integers are for weights like these");
  multiply_all(team, x.rows, {nullptr, &x, &weights, out, options}, MatmulUnit::kVector);
}

}  // namespace protean::cpu
#endif
