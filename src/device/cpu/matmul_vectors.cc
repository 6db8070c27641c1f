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

constexpr int kTileRows = kFloatTileRows;
static_assert(kTileRows <= kMaxVectorRows);
// Inputs that are multiplied with one tile of rows before the next: their weights, as f32, stay in
// L1, and the inputs of all rows in L2.
constexpr std::int64_t kChunk = 256;
constexpr std::int64_t kSingleTileChunk = 1024;
constexpr std::int64_t kFewRowsInputs = 16384;  // the same for few rows, over all of them
static_assert(kChunk * kMaxTaskRows >= kSingleTileChunk * kMaxVectorRows &&
                  kChunk * kMaxTaskRows >= kFewRowsInputs,
              "one buffer serves both");
// Up to this many rows read codes straight from the panel. For more it is faster to unpack them
// first.
constexpr int kMaxCodeRows = 2;

// Returns the vectors of outputs in a tile. Few rows need many, or the latency of sums is the
// limit.
constexpr int tile_vecs(int rows) {
  if (kLanes == 16) {
    return rows <= 2 ? 8 : rows <= 6 ? 4 : 2;
  }
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// The operands of a tile: the inputs of R rows, interleaved as [step][R], in whole blocks and
// within one group, and the sums to which products are added. x_sums are the sums of the rows'
// inputs.
template <class Math>
struct TileProduct {
  const typename Math::X* x = nullptr;
  const float* x_sums = nullptr;  // only if weights have offsets
  std::int64_t inputs = 0;
  float* sums = nullptr;
  std::int64_t row_stride = 0;
};

// Prefetches the line kAhead bytes later. The hardware prefetcher does not recognise short runs of
// lines in several panels in time.
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

#if HWY_TARGET == HWY_AVX3
// Multiplies the next four inputs with the two weights of each output that 2:4 keeps.
template <int R, int V, int four>
HWY_INLINE void multiply_kept(const std::uint32_t* x, const std::byte* const* lines,
                              Vec (&tile)[R][V]) {
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    const WordVec positions = load_words(lines[v]);
    const WordVec weights = TwoOfFourLines::pair<four>(lines[v]);
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      const std::uint32_t* const pairs = x + 2 * four * R + r;
      add_bf16_pairs(tile[r][v], kept_inputs<four>(positions, pairs[0], pairs[R]), weights);
    }
  }
}

template <int R, int V, int... four>
HWY_INLINE void multiply_all_kept(const std::uint32_t* x, const std::byte* const* lines,
                                  Vec (&tile)[R][V],
                                  std::integer_sequence<int, four...> /*fours of a line*/) {
  (multiply_kept<R, V, four>(x, lines, tile), ...);
}
#endif

template <class Math, int R, int V, class Lines, int... j>
HWY_INLINE void multiply_steps(const typename Math::X* x, const std::byte* const* lines,
                               Vec (&tile)[R][V],
                               std::integer_sequence<int, j...> /*steps of a line*/) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<Math, Pairs> && std::is_same_v<Lines, TwoOfFourLines>) {
    return multiply_all_kept(x, lines, tile, std::make_integer_sequence<int, Lines::kInputs / 4>());
  }
#endif
  const auto table = Math::template table<Lines>();
  (multiply_step<Math, R, V, Lines, Math::in_turn(j)>(x, lines, table, tile), ...);
}

// Multiplies R rows with V vectors of outputs. If kScaled, scales the sums over codes at the end.
template <class Math, int R, int V, class Lines, bool kScaled>
HWY_NOINLINE void multiply_tile(const TileProduct<Math>& product, const std::byte* const* lines,
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
                           : hn::LoadU(floats, product.sums + r * product.row_stride + v * kLanes);
    }
  }
  constexpr int kSteps = Lines::kInputs / Math::kInputs;
  const typename Math::X* x = product.x;
  for (std::int64_t i = 0; i < product.inputs; i += Lines::kInputs) {
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
      float* const to = product.sums + r * product.row_stride + v * kLanes;
      Vec sum = tile[r][v];
      if constexpr (kScaled) {
        sum = hn::MulAdd(scale, sum, hn::LoadU(floats, to));
        if (product.x_sums != nullptr) {
          const Vec offset = load_scales(scales[v] + std::ptrdiff_t{kPanel} * 2);
          sum = hn::MulAdd(offset, hn::Set(floats, product.x_sums[r]), sum);
        }
      }
      hn::StoreU(sum, floats, to);
    }
  }
}

// A chunk of inputs of a matrix. Without scales it is one group.
struct Chunk {
  std::int64_t inputs = 0;  // whole blocks
  std::int64_t group_inputs = 0;
  std::int64_t group_bytes = 0;
  std::int64_t scale_bytes = 0;
  std::int64_t panel_bytes = 0;
  const std::byte* panels = nullptr;  // first group of the chunk in the first panel of the task
};

// Some rows of a task and one chunk of inputs, read straight from the panels.
template <class Math>
struct Strip {
  const typename Math::X* x = nullptr;  // interleaved
  const float* x_sums = nullptr;        // [groups][rows]; null without offsets
  const Chunk* chunk = nullptr;
  int vecs = 0;  // vectors of outputs
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
  TileProduct<Math> product{strip.x, strip.x_sums, 0, strip.sums + first_vec * kLanes,
                            std::int64_t{strip.vecs} * kLanes};
  for (std::int64_t first = 0; first < chunk.inputs; first += chunk.group_inputs) {
    product.inputs = std::min(chunk.group_inputs, chunk.inputs - first);
    multiply_tile<Math, R, V, Lines, kScaled>(product, lines, scales);
    product.x += R * product.inputs / Math::kInputs;
    product.x_sums += product.x_sums == nullptr ? 0 : R;
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

// Some rows of a task and one group of one panel, unpacked to `lines`.
template <class Math>
struct Block {
  TileProduct<Math> product;
  const std::byte* lines = nullptr;
  const std::byte* scales = nullptr;
};

template <class Math, int R, class Lines, bool kScaled>
void multiply_block(const Block<Math>& block) {
  constexpr int V = std::min(tile_vecs(R), kPanelVecs);
  TileProduct<Math> product = block.product;
  for (int vec = 0; vec < kPanelVecs; vec += V) {
    const std::byte* lines[V];
    const std::byte* scales[V];
    for (int v = 0; v < V; ++v) {
      lines[v] = block.lines + std::ptrdiff_t{vec + v} * kLanes * Lines::kOutputBytes;
      scales[v] = block.scales + std::ptrdiff_t{vec + v} * kLanes * 2;
    }
    product.sums = block.product.sums + vec * kLanes;
    multiply_tile<Math, R, V, Lines, kScaled>(product, lines, scales);
  }
}

// Buffers of a task: half a MiB of stack. Pairs are already arranged and need no `x`.
template <class Math>
struct TaskBuffers {
  alignas(64) float sums[kMaxTaskRows * kMaxTaskPanels * kPanel];
  alignas(64) float x[std::is_same_v<Math, Singles> ? kMaxTaskRows * kChunk : 1];
  alignas(64) float x_sums[kSingleTileChunk / PackedMatrix::kInputBlock * kMaxTaskRows];
  alignas(64) typename Math::X lines[kChunk * kPanel / Math::kInputs];
};

// Divides the rows of a task into tiles, which are blocks of rows.
class TaskTiles {
 public:
  TaskTiles(const RowBlocks& blocks, const MatmulTask& task) {
    const std::int64_t first = blocks.at(task.first_row);
    begins_[0] = 0;
    while (begins_[count_] < task.rows) {
      ++count_;
      begins_[count_] = static_cast<int>(blocks.begin(first + count_) - task.first_row);
    }
  }

  int count() const { return count_; }
  int begin(int tile) const { return begins_[tile]; }
  int size(int tile) const { return begins_[tile + 1] - begins_[tile]; }

 private:
  int count_ = 0;
  int begins_[kMaxTaskRows + 1];
};

// The inputs of a task from `first` on. Those of each tile are interleaved as [step][row].
template <class Math>
struct TileInputs {
  const typename Math::X* x = nullptr;
  std::int64_t row_steps = 0;
  std::int64_t first = 0;

  const typename Math::X* at(const TaskTiles& tiles, int tile, std::int64_t input) const {
    return x + tiles.begin(tile) * row_steps + (input - first) / Math::kInputs * tiles.size(tile);
  }
};

struct InputRange {
  std::int64_t first = 0;
  std::int64_t end = 0;  // ends a whole block
};

// Interleaves the inputs of row-major rows into `to`, tile by tile, padded with zeros.
inline TileInputs<Singles> interleave(const MatmulOperands& operands, const MatmulTask& task,
                                      const TaskTiles& tiles, const InputRange& range, float* to) {
  const std::int64_t stride = operands.x->inputs;
  const std::int64_t padded = range.end - range.first;
  const std::int64_t count = std::min(range.end, stride) - range.first;
  const float* const x = operands.x->x + task.first_row * stride + range.first;
  for (int tile = 0; tile < tiles.count(); ++tile) {
    const int rows = tiles.size(tile);
    float* const of_tile = to + tiles.begin(tile) * padded;
    interleave_rows(x + tiles.begin(tile) * stride, stride, rows, count, of_tile);
    std::fill(of_tile + count * rows, of_tile + padded * rows, 0.0f);
  }
  return {to, padded, range.first};
}

template <class Math>
TileInputs<Math> inputs_of(const MatmulOperands& operands, const MatmulTask& task,
                           const TaskTiles& tiles, const InputRange& range,
                           TaskBuffers<Math>& buffers) {
  if constexpr (std::is_same_v<Math, Singles>) {
    return interleave(operands, task, tiles, range, buffers.x);
  } else {
    const MatmulRows& x = *operands.x;
    return {x.words + task.first_row * x.row_words(), x.row_words(), 0};
  }
}

// Computes the sums of each group of inputs, [groups][rows].
inline void sum_groups(const MatmulOperands& operands, const MatmulTask& task,
                       const InputRange& range, float* sums) {
  const std::int64_t inputs = operands.x->inputs;
  const std::int64_t group = operands.weights->format.group;
  const float* const x = operands.x->x + task.first_row * inputs;
  for (std::int64_t from = range.first; from < std::min(range.end, inputs); from += group) {
    for (int r = 0; r < task.rows; ++r) {
      *sums++ = sum_inputs(x + r * inputs + from, std::min(group, inputs - from));
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

// Returns the chunk of `inputs` inputs that begins at `first`.
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

inline bool has_offsets(const WeightFormat& format) {
  return format.quantized() && !format.symmetric;
}

// Returns the inputs of a panel that are read before the next panel: long runs stream faster.
constexpr std::int64_t few_rows_chunk(int rows) {
  return std::max(kSingleTileChunk, kFewRowsInputs / rows / kChunk * kChunk);
}

// Multiplies few rows, which are one tile. Each weight is read once, in memory order.
template <class Math, class Lines, bool kScaled, int kMaxRows>
void multiply_few(const MatmulOperands& operands, const MatmulTask& task,
                  TaskBuffers<Math>& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const TaskTiles tile(operands.x->blocks, task);
  check(tile.count() == 1, "so few rows are one tile");
  const std::int64_t padded = weights.padded_inputs();
  const bool offsets = has_offsets(weights.format);
  const bool direct =
      std::is_same_v<Math, Singles> && task.rows == 1 && padded == weights.inputs && !offsets;
  const std::int64_t step = direct ? padded : few_rows_chunk(task.rows);
  for (std::int64_t first = 0; first < padded; first += step) {
    const InputRange range{first, std::min(first + step, padded)};
    const Chunk chunk = chunk_at(weights, task.first_panel, first, range.end - first);
    if (offsets) {
      sum_groups(operands, task, range, buffers.x_sums);
    }
    Strip<Math> strip{nullptr, offsets ? buffers.x_sums : nullptr, &chunk, task.panels * kPanelVecs,
                      buffers.sums};
    if constexpr (std::is_same_v<Math, Singles>) {
      strip.x = direct ? operands.x->x + task.first_row * weights.inputs : nullptr;
    }
    if (!direct) {
      strip.x = inputs_of(operands, task, tile, range, buffers).at(tile, 0, first);
    }
    multiply_rows<Math, Lines, kScaled>(task.rows, strip,
                                        std::make_integer_sequence<int, kMaxRows>());
  }
}

// A run of a panel, which is unpacked at once and stays in L1 while all rows are multiplied.
template <class Math>
struct PanelRun {
  const std::byte* packed = nullptr;
  std::int64_t scale_bytes = 0;
  std::int64_t first = 0;                // first input
  std::int64_t inputs = 0;               // whole blocks
  const float* x_sums = nullptr;         // [rows of the task]; null without offsets
  typename Math::X* unpacked = nullptr;  // [steps][32]
};

// Where finished rows of a task are stored after a panel's last run.
struct PanelOut {
  const MatmulOperands* operands = nullptr;
  std::int64_t first_row = 0;
  std::int64_t panel = 0;
};

template <class Math, class Lines, bool kScaled>
void multiply_run(const PanelRun<Math>& run, const TaskTiles& tiles, const TileInputs<Math>& inputs,
                  float* sums, const PanelOut* out) {
  Block<Math> block{.product = {.inputs = run.inputs, .row_stride = kPanel},
                    .lines = run.packed,
                    .scales = run.packed};
  // If lines need no unpacking, the first tile prefetches them.
  using Unpacked = typename Math::Unpacked;
  constexpr bool kInPlace = std::is_base_of_v<Lines, Unpacked>;
  if constexpr (!kInPlace) {
    unpack_lines<Math, Lines>(run.packed + run.scale_bytes, run.inputs, run.unpacked);
    block.lines = reinterpret_cast<const std::byte*>(run.unpacked);
  }
  constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  for (int tile = 0; tile < tiles.count(); ++tile) {
    const std::ptrdiff_t begin = tiles.begin(tile);
    block.product.x = inputs.at(tiles, tile, run.first);
    block.product.x_sums = run.x_sums == nullptr ? nullptr : run.x_sums + begin;
    block.product.sums = sums + begin * kPanel;
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
                  block.product.sums, kPanel);
    }
  }
}

// Multiplies many rows. Each run of a panel is unpacked once for all rows. Sums are stored as soon
// as they are complete, while they are in L1.
template <class Math, class Lines, bool kScaled>
void multiply_many(const MatmulOperands& operands, const MatmulTask& task,
                   TaskBuffers<Math>& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const TaskTiles tiles(operands.x->blocks, task);
  const std::int64_t padded = weights.padded_inputs();
  const bool offsets = has_offsets(weights.format);
  const std::int64_t run_inputs = kScaled ? weights.format.group : kChunk;
  // As many inputs of a panel as the buffer for the rows' inputs allows, to read long runs of
  // memory.
  const std::int64_t step = std::clamp(kMaxTaskRows / task.rows * kChunk, kChunk, kSingleTileChunk);
  for (std::int64_t first = 0; first < padded; first += step) {
    const InputRange range{first, std::min(first + step, padded)};
    const TileInputs<Math> inputs = inputs_of(operands, task, tiles, range, buffers);
    if (offsets) {
      sum_groups(operands, task, range, buffers.x_sums);
    }
    for (int panel = 0; panel < task.panels; ++panel) {
      float* const sums = buffers.sums + std::ptrdiff_t{panel} * task.rows * kPanel;
      const PanelOut out{&operands, task.first_row, task.first_panel + panel};
      for (std::int64_t from = first; from < range.end; from += run_inputs) {
        const std::int64_t count = std::min(run_inputs, range.end - from);
        const Chunk chunk = chunk_at(weights, task.first_panel + panel, from, count);
        const float* const x_sums =
            offsets ? buffers.x_sums + (from - first) / run_inputs * task.rows : nullptr;
        multiply_run<Math, Lines, kScaled>(
            {chunk.panels, chunk.scale_bytes, from, count, x_sums, buffers.lines}, tiles, inputs,
            sums, from + run_inputs >= padded ? &out : nullptr);
      }
    }
  }
}

template <class Math, class Lines, bool kScaled>
void multiply_task(const MatmulOperands& operands, const MatmulTask& task) {
  // f32 needs no unpacking. It is for tests of the other formats.
  constexpr bool kF32 = std::is_same_v<Lines, F32Lines>;
  constexpr int kFewRows = kF32 ? 1 : kScaled ? kMaxCodeRows : kTileRows;
  TaskBuffers<Math> buffers;
  std::fill_n(buffers.sums, task.rows * task.panels * kPanel, 0.0f);
  if (task.rows <= kFewRows) {
    multiply_few<Math, Lines, kScaled, kFewRows>(operands, task, buffers);
    finish_task(operands, task, buffers.sums);
  } else {
    multiply_many<Math, Lines, kScaled>(operands, task, buffers);
  }
}

template <class Math>
void multiply_bf16(const MatmulOperands& operands, const MatmulTask& task) {
  switch (operands.weights->format.kind) {
    case WeightKind::kF32:
      return check(false, "bf16 does not hold these weights");
    case WeightKind::kBf16:
      return multiply_task<Math, Bf16Lines, false>(operands, task);
    case WeightKind::kTwoOfFour:
      return multiply_task<Math, TwoOfFourLines, false>(operands, task);
    case WeightKind::kW8:
      return multiply_task<Math, W8Lines, true>(operands, task);
    case WeightKind::kW4:
      return multiply_task<Math, W4Lines, true>(operands, task);
    case WeightKind::kW3:
      return multiply_task<Math, W3Lines, true>(operands, task);
  }
}

void multiply_vectors_here(const MatmulOperands& operands, const MatmulTask& task) {
  if (operands.weights->format.kind == WeightKind::kF32) {
    multiply_task<Singles, F32Lines, false>(operands, task);
  } else if (operands.x->words != nullptr) {
    multiply_bf16<Pairs>(operands, task);
  } else {
    multiply_bf16<Singles>(operands, task);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_vectors_here);

void multiply_vectors(const MatmulOperands& operands, const MatmulTask& task) {
  check(task.rows <= kMaxTaskRows && task.panels <= kMaxTaskPanels, "a task fits its buffers");
  HWY_DYNAMIC_DISPATCH(multiply_vectors_here)(operands, task);
}

}  // namespace protean::cpu
#endif
