#include "device/cpu/matmul_vectors.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_vectors.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/interleave-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Accumulators of a tile must leave registers for weights and a broadcast input.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
static_assert(kTileRows <= kMaxVectorRows);
// Inputs multiplied before the next tile of rows: their weights stay in L1 for all of them, as f32,
// and the rows' inputs in L2.
constexpr std::int64_t kChunk = 256;
constexpr std::int64_t kSingleTileChunk = 1024;
constexpr std::int64_t kFewRowsInputs = 16384;  // of all rows
static_assert(kChunk * kMaxPartRows >= kSingleTileChunk * kMaxVectorRows &&
                  kChunk * kMaxPartRows >= kFewRowsInputs,
              "one buffer serves both");
// Up to so many rows read codes straight from the panel; for more, unpacking them first costs less.
constexpr int kMaxCodeRows = 2;
// So few wait for memory: to make pairs of their weights would cost more than it saves.
constexpr int kMaxSingleRows = 2;

// How many vectors of outputs a tile spans: few rows need many, or each sum's latency would set the
// pace.
constexpr int tile_vecs(int rows) {
  if (kLanes == 16) {
    return rows <= 2 ? 8 : rows <= 6 ? 4 : 2;
  }
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// What a tile multiplies: inputs of R rows as Math has them, interleaved [step][R], whole blocks of
// them and at most one group, and what it adds to. x_sums are the rows' sums over the group.
template <class Math>
struct TileTask {
  const typename Math::X* x = nullptr;
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

template <class Math, int R, int V, class Lines, int j>
HWY_INLINE void multiply_step(const typename Math::X* x, const std::byte* const* lines,
                              typename Math::Table table, Vec (&tile)[R][V]) {
  typename Math::Table weights[V];
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    weights[v] = Math::template weights<Lines, j>(lines[v], table);
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    const auto input = Math::input(x[j * R + r]);
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      Math::add(tile[r][v], input, weights[v]);
    }
  }
}

template <class Math, int R, int V, class Lines, int... j>
HWY_INLINE void multiply_steps(const typename Math::X* x, const std::byte* const* lines,
                               Vec (&tile)[R][V],
                               std::integer_sequence<int, j...> /*steps of a line*/) {
  const auto table = Math::template table<Lines>();
  (multiply_step<Math, R, V, Lines, Math::in_turn(j)>(x, lines, table, tile), ...);
}

// R rows times V vectors of outputs. With kScaled the sums over codes are scaled once here.
template <class Math, int R, int V, class Lines, bool kScaled>
HWY_NOINLINE void multiply_tile(const TileTask<Math>& task, const std::byte* const* lines,
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
  constexpr int kSteps = Lines::kInputs / Math::kInputs;
  const typename Math::X* x = task.x;
  for (std::int64_t i = 0; i < task.inputs; i += Lines::kInputs) {
    multiply_steps<Math, R, V, Lines>(x, line, tile, std::make_integer_sequence<int, kSteps>());
    x += R * kSteps;
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
template <class Math>
struct Strip {
  const typename Math::X* x = nullptr;  // interleaved
  const float* x_sums = nullptr;        // [groups][rows]; null without offsets
  const Chunk* chunk = nullptr;
  int vecs = 0;  // of outputs
  float* sums = nullptr;
};

template <class Math, int R, int V, class Lines, bool kScaled>
void multiply_vecs(const Strip<Math>& strip, int first_vec) {
  const Chunk& chunk = *strip.chunk;
  const std::byte* lines[V];
  const std::byte* scales[V];
  for (int v = 0; v < V; ++v) {
    const int output = (first_vec + v) % kPanelVecs * kLanes;
    const std::byte* const panel = chunk.panels + (first_vec + v) / kPanelVecs * chunk.panel_bytes;
    scales[v] = panel + std::ptrdiff_t{output} * 2;
    lines[v] = panel + chunk.scale_bytes + std::ptrdiff_t{output} * Lines::kOutputBytes;
  }
  TileTask<Math> task{strip.x, strip.x_sums, 0, strip.sums + first_vec * kLanes,
                      std::int64_t{strip.vecs} * kLanes};
  for (std::int64_t first = 0; first < chunk.inputs; first += chunk.group_inputs) {
    task.inputs = std::min(chunk.group_inputs, chunk.inputs - first);
    multiply_tile<Math, R, V, Lines, kScaled>(task, lines, scales);
    task.x += R * task.inputs / Math::kInputs;
    task.x_sums += task.x_sums == nullptr ? 0 : R;
    for (int v = 0; v < V; ++v) {
      lines[v] += chunk.group_bytes;
      scales[v] += chunk.group_bytes;
    }
  }
}

template <class Math, int R, class Lines, bool kScaled>
void multiply_strip(const Strip<Math>& strip) {
  constexpr int V = tile_vecs(R);
  int vec = 0;
  for (; vec + V <= strip.vecs; vec += V) {
    multiply_vecs<Math, R, V, Lines, kScaled>(strip, vec);
  }
  for (; vec < strip.vecs; vec += 2) {
    multiply_vecs<Math, R, 2, Lines, kScaled>(strip, vec);
  }
}

// Some rows of a part times one panel of one group that was unpacked to `lines`.
template <class Math>
struct Block {
  TileTask<Math> task;
  const std::byte* lines = nullptr;
  const std::byte* scales = nullptr;
};

template <class Math, int R, class Lines, bool kScaled>
void multiply_block(const Block<Math>& block) {
  constexpr int V = std::min(tile_vecs(R), kPanelVecs);
  TileTask<Math> task = block.task;
  for (int vec = 0; vec < kPanelVecs; vec += V) {
    const std::byte* lines[V];
    const std::byte* scales[V];
    for (int v = 0; v < V; ++v) {
      lines[v] = block.lines + std::ptrdiff_t{vec + v} * kLanes * Lines::kOutputBytes;
      scales[v] = block.scales + std::ptrdiff_t{vec + v} * kLanes * 2;
    }
    task.sums = block.task.sums + vec * kLanes;
    multiply_tile<Math, R, V, Lines, kScaled>(task, lines, scales);
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
template <class Math>
struct PartBuffers {
  alignas(64) float sums[kMaxPartRows * kMaxPartPanels * kPanel];
  alignas(64) typename Math::X x[kMaxPartRows * kChunk / Math::kInputs];
  alignas(64) float x_sums[kSingleTileChunk / PackedMatrix::kInputBlock * kMaxPartRows];
  alignas(64) typename Math::X lines[kChunk * kPanel / Math::kInputs];
};

// Inputs [first, first + count) of rows, padded with zeros to whole blocks.
template <class Math>
struct InputRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::int64_t group = 0;         // whose sums are wanted; 0: none
  typename Math::X* x = nullptr;  // where they go: all rows' inputs, tile by tile
  float* x_sums = nullptr;        // [groups][rows]
};

// Some rows of a part, as one tile reads them.
struct TileRows {
  const float* x = nullptr;  // of the part
  std::int64_t stride = 0;
  std::ptrdiff_t first = 0;
  int count = 0;
};

// Inputs of a row, which bf16 holds, two to a word; padded with zeros to a whole block of inputs.
inline void pair_inputs(const float* x, std::int64_t count, std::uint32_t* words) {
  constexpr std::int64_t kBlock = PackedMatrix::kInputBlock;
  alignas(64) float rest[kBlock];
  for (std::int64_t i = 0; i < count; i += kBlock, words += kBlock / 2) {
    const float* from = x + i;
    if (count - i < kBlock) {
      std::fill(std::copy_n(from, count - i, rest), std::end(rest), 0.0f);
      from = rest;
    }
    for (int k = 0; k < kBlock; k += kUnit) {
      const Unit pair = load_sums<std::uint16_t>(from + k);
      const Words d;
      hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(d, pair.a)), hn::BitCast(d, pair.b)), d,
                 words + k / 2);
    }
  }
}

inline void interleave_inputs(const float* x, const TileRows& rows,
                              const InputRange<Singles>& range, float* to) {
  interleave_rows(x, rows.stride, rows.count, range.count, to);
  std::fill(to + range.count * rows.count, to + range.padded * rows.count, 0.0f);
}

inline void interleave_inputs(const float* x, const TileRows& rows, const InputRange<Pairs>& range,
                              std::uint32_t* to) {
  // Between two rows a line more, or by a power of two they would fight for the same lines.
  constexpr std::int64_t kWords = kChunk / Pairs::kInputs, kStride = kWords + 16;
  alignas(64) std::uint32_t words[kTileRows * kStride];
  for (std::int64_t first = 0; first < range.padded; first += kChunk) {
    const std::int64_t padded = std::min(kChunk, range.padded - first);
    for (int r = 0; r < rows.count; ++r) {
      pair_inputs(x + r * rows.stride + first, std::min(padded, range.count - first),
                  words + r * kStride);
    }
    interleave_rows(words, kStride, rows.count, padded / Pairs::kInputs,
                    to + first / Pairs::kInputs * rows.count);
  }
}

template <class Math>
void arrange_rows(const TileRows& rows, const InputRange<Math>& range) {
  const float* const x = rows.x + rows.first * rows.stride + range.first;
  interleave_inputs(x, rows, range, range.x + rows.first * range.padded / Math::kInputs);
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

template <class Math, class Lines, bool kScaled, int... kBefore>
void multiply_rows(int rows, const Strip<Math>& strip,
                   std::integer_sequence<int, kBefore...> /*row counts - 1*/) {
  using Multiply = void (*)(const Strip<Math>&);
  static constexpr Multiply kByRows[] = {&multiply_strip<Math, kBefore + 1, Lines, kScaled>...};
  kByRows[rows - 1](strip);
}

template <class Math, class Lines, bool kScaled, int... kBefore>
void multiply_block_rows(int rows, const Block<Math>& block,
                         std::integer_sequence<int, kBefore...> /*row counts - 1*/) {
  using Multiply = void (*)(const Block<Math>&);
  static constexpr Multiply kByRows[] = {&multiply_block<Math, kBefore + 1, Lines, kScaled>...};
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

// Inputs of a panel that are read before the next panel's: long runs stream better.
constexpr std::int64_t few_rows_chunk(int rows) {
  return std::max(kSingleTileChunk, kFewRowsInputs / rows / kChunk * kChunk);
}

// Few rows: each weight is read once, in the order of memory.
template <class Math, class Lines, bool kScaled, int kMaxRows>
void multiply_few(const MatmulOperands& operands, const MatmulPart& part,
                  PartBuffers<Math>& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const float* const x = operands.x + part.first_row * weights.inputs;
  const std::int64_t padded = weights.padded_inputs();
  const std::int64_t group = summed_group(weights.format);
  const bool direct =
      std::is_same_v<Math, Singles> && part.rows == 1 && padded == weights.inputs && group == 0;
  const std::int64_t step = direct ? padded : few_rows_chunk(part.rows);
  for (std::int64_t first = 0; first < padded; first += step) {
    const Chunk chunk = chunk_at(weights, part.first_panel, first, std::min(step, padded - first));
    if (!direct) {
      arrange_rows<Math>({x, weights.inputs, 0, part.rows},
                         {first, std::min(step, weights.inputs - first), chunk.inputs, group,
                          buffers.x, buffers.x_sums});
    }
    Strip<Math> strip{buffers.x, group == 0 ? nullptr : buffers.x_sums, &chunk,
                      part.panels * kPanelVecs, buffers.sums};
    if constexpr (std::is_same_v<Math, Singles>) {
      strip.x = direct ? x : buffers.x;
    }
    multiply_rows<Math, Lines, kScaled>(part.rows, strip,
                                        std::make_integer_sequence<int, kMaxRows>());
  }
}

// One run of a panel times all rows: what is unpacked at once and stays in L1 meanwhile.
template <class Math>
struct PanelRun {
  const std::byte* packed = nullptr;
  std::int64_t scale_bytes = 0;
  typename Math::X* unpacked = nullptr;  // [steps][32]
};

// Where the rows of a part leave when a panel's last run is done.
struct PanelOut {
  const MatmulOperands* operands = nullptr;
  std::int64_t first_row = 0;
  std::int64_t panel = 0;
};

template <class Math, class Lines, bool kScaled>
void multiply_run(const PanelRun<Math>& weights, const Tiles& tiles, const InputRange<Math>& run,
                  const Block<Math>& to, const PanelOut* out) {
  Block<Math> block = to;
  block.lines = weights.packed;
  block.scales = weights.packed;
  // Lines that need no unpacking are asked for ahead by the first tile.
  using Unpacked = typename Math::Unpacked;
  constexpr bool kInPlace = std::is_base_of_v<Lines, Unpacked>;
  if constexpr (!kInPlace) {
    unpack_lines<Math, Lines>(weights.packed + weights.scale_bytes, run.padded, weights.unpacked);
    block.lines = reinterpret_cast<const std::byte*>(weights.unpacked);
  }
  block.task.inputs = run.padded;
  constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  for (int tile = 0; tile < tiles.count; ++tile) {
    const std::ptrdiff_t begin = tiles.begin(tile);
    block.task.x = run.x + begin * run.padded / Math::kInputs;
    block.task.x_sums = run.group == 0 ? nullptr : run.x_sums + begin;
    block.task.sums = to.task.sums + begin * to.task.row_stride;
    if (out != nullptr) {
      expect_rows(*out->operands, {out->first_row + begin, tiles.size(tile), out->panel});
    }
    if (kInPlace && tile == 0) {
      using First = std::conditional_t<kInPlace, Lines, Unpacked>;
      multiply_block_rows<Math, First, kScaled>(tiles.size(tile), block, kRows);
    } else {
      multiply_block_rows<Math, Unpacked, kScaled>(tiles.size(tile), block, kRows);
    }
    if (out != nullptr) {
      finish_rows(*out->operands, {out->first_row + begin, tiles.size(tile), out->panel},
                  block.task.sums, kPanel);
    }
  }
}

// Many rows: a panel's run is unpacked once for all of them. Sums leave as soon as they are whole,
// from L1.
template <class Math, class Lines, bool kScaled>
void multiply_many(const MatmulOperands& operands, const MatmulPart& part,
                   PartBuffers<Math>& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const float* const x = operands.x + part.first_row * weights.inputs;
  const std::int64_t padded = weights.padded_inputs();
  const std::int64_t group = summed_group(weights.format);
  const std::int64_t run_inputs = kScaled ? weights.format.group : kChunk;
  // As much of a panel as the rows' inputs have room for: it is read from memory in one go.
  const std::int64_t step = std::clamp(kMaxPartRows / part.rows * kChunk, kChunk, kSingleTileChunk);
  const Tiles tiles{part.rows, ceil_div(part.rows, kTileRows)};
  const auto run_at = [&](std::int64_t first, std::int64_t from) {
    return InputRange<Math>{from,
                            std::min(run_inputs, weights.inputs - from),
                            std::min(run_inputs, padded - from),
                            group,
                            buffers.x + (from - first) * part.rows / Math::kInputs,
                            buffers.x_sums + (from - first) / run_inputs * part.rows};
  };
  for (std::int64_t first = 0; first < padded; first += step) {
    const std::int64_t end = std::min(first + step, padded);
    for (std::int64_t from = first; from < end; from += run_inputs) {
      for (int tile = 0; tile < tiles.count; ++tile) {
        arrange_rows<Math>({x, weights.inputs, tiles.begin(tile), tiles.size(tile)},
                           run_at(first, from));
      }
    }
    for (int panel = 0; panel < part.panels; ++panel) {
      const Block<Math> to{
          .task = {.sums = buffers.sums + std::ptrdiff_t{panel} * part.rows * kPanel,
                   .row_stride = kPanel}};
      const PanelOut out{&operands, part.first_row, part.first_panel + panel};
      for (std::int64_t from = first; from < end; from += run_inputs) {
        const Chunk chunk = chunk_at(weights, part.first_panel + panel, from, run_inputs);
        multiply_run<Math, Lines, kScaled>({chunk.panels, chunk.scale_bytes, buffers.lines}, tiles,
                                           run_at(first, from), to,
                                           from + run_inputs >= padded ? &out : nullptr);
      }
    }
  }
}

template <class Math, class Lines, bool kScaled>
void multiply_part(const MatmulOperands& operands, const MatmulPart& part) {
  // f32 needs no unpacking, and is for tests of the others.
  constexpr bool kF32 = std::is_same_v<Lines, F32Lines>;
  constexpr int kFewRows = kF32 ? 1 : kScaled ? kMaxCodeRows : kTileRows;
  PartBuffers<Math> buffers;
  std::fill_n(buffers.sums, part.rows * part.panels * kPanel, 0.0f);
  if (part.rows <= kFewRows) {
    multiply_few<Math, Lines, kScaled, kFewRows>(operands, part, buffers);
    finish_part(operands, part, buffers.sums);
  } else {
    multiply_many<Math, Lines, kScaled>(operands, part, buffers);
  }
}

template <class Math>
void multiply_bf16(const MatmulOperands& operands, const MatmulPart& part) {
  switch (operands.weights->format.kind) {
    case WeightKind::kF32:
      return check(false, "bf16 does not hold these weights");
    case WeightKind::kBf16:
      return multiply_part<Math, Bf16Lines, false>(operands, part);
    case WeightKind::kW8:
      return multiply_part<Math, W8Lines, true>(operands, part);
    case WeightKind::kW4:
      return multiply_part<Math, W4Lines, true>(operands, part);
    case WeightKind::kW3:
      return multiply_part<Math, W3Lines, true>(operands, part);
  }
}

void multiply_vectors_here(const MatmulOperands& operands, const MatmulPart& part, bool dot) {
  if (operands.weights->format.kind == WeightKind::kF32) {
    multiply_part<Singles, F32Lines, false>(operands, part);
  } else if (dot && part.rows > kMaxSingleRows) {
    multiply_bf16<Pairs>(operands, part);
  } else {
    multiply_bf16<Singles>(operands, part);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

// Takes denormals for zeros, as dot instructions and AMX do, while it lives.
class FlushDenormals {
 public:
#if HWY_ARCH_X86_64
  FlushDenormals() : before_(_mm_getcsr()) {
    constexpr unsigned kOfResults = 1U << 15, kOfOperands = 1U << 6;
    _mm_setcsr(before_ | kOfResults | kOfOperands);
  }
  ~FlushDenormals() {
    _mm_setcsr(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
#endif
};

}  // namespace

HWY_EXPORT(multiply_vectors_here);

void multiply_vectors(const MatmulOperands& operands, const MatmulPart& part, bool dot) {
  check(part.rows <= kMaxPartRows && part.panels <= kMaxPartPanels, "a part fits its buffers");
  [[maybe_unused]] const FlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(multiply_vectors_here)(operands, part, dot);
}

}  // namespace protean::cpu
#endif
