#include "device/cpu/matmul_int8.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/interleave-inl.h"
#include "device/cpu/word_lines-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Words of a row that are multiplied with one panel before the next: those of all rows stay in L2.
constexpr std::int64_t kStepWords = 256;
constexpr std::int64_t kMostGroup = 128;
// Words that one or two rows are multiplied with before the next panel. They read codes straight
// from the panel.
constexpr std::int64_t kDirectWords = kStepWords * kMaxTaskRows / 2;

template <class Lines>
constexpr int tile_rows() {
  return most_integer_rows(UnpackedWords<Lines>::kWords == 2);
}

constexpr int tile_vecs(int rows) {
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

// The rows of a tile over one group of inputs.
struct GroupRows {
  const std::uint32_t* x = nullptr;  // [word][row]
  const float* scales = nullptr;     // begins with the first row, like totals
  const std::int32_t* totals = nullptr;
  std::int64_t inputs = 0;  // whole blocks
  bool offsets = false;     // the weights have offsets
};

// The sums of a tile. load() returns zeros until the first group has been added (`begun`).
struct TileSums {
  float* first = nullptr;
  std::int64_t stride = 0;  // from row to row
  bool begun = false;

  float* at(int row, int vec) const { return first + row * stride + vec * kLanes; }
  HWY_INLINE Vec load(const float* from) const {
#if HWY_TARGET == HWY_SCALAR
    return begun ? hn::LoadU(Floats(), from) : hn::Zero(Floats());  // a masked load would read all
#else
    const auto there = hn::FirstN(Floats(), begun ? kLanes : 0);
    return hn::MaskedLoad(there, Floats(), from);
#endif
  }
};

// Multiplies R rows with V vectors of outputs over one group. Integer sums are exact in any order.
// They are then scaled once and added to the sums. If kAsks, and if a vector is a cache line,
// prefetches later lines of the panels into L2: the prefetcher of the processor begins anew in each
// page.
template <int R, int V, class Lines, bool kAsks>
HWY_INLINE void multiply_tile(const GroupRows& rows, const std::byte* const* lines,
                              const std::byte* const* scales, const TileSums& sums) {
  const Floats floats;
  IntVec tile[R][V];
  const std::byte* line[V];
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    line[v] = lines[v];
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      tile[r][v] = Lines::begin(line[v], rows.totals[r]);
    }
  }
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    line[v] += Lines::kBytesBefore;
  }
  const std::uint32_t* x = rows.x;
  for (std::int64_t i = 0; i < rows.inputs; i += Lines::kInputs) {
    WordVec weights[V][2];
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      if constexpr (kAsks && kLanes * sizeof(float) == kCacheLine) {
        constexpr std::int64_t kAheadBytes = 2048;
        __builtin_prefetch(line[v] + kAheadBytes, 0, 2);  // for reading, into L2; 3 would be L1
      }
      weights[v][0] = Lines::template word<0>(line[v]);
      if constexpr (Lines::kWords == 2) {
        weights[v][1] = Lines::template word<1>(line[v]);
      }
      line[v] += Lines::kBytes;
    }
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      WordVec input[2];
      input[0] = Lines::input(x[r]);
      if constexpr (Lines::kWords == 2) {
        input[1] = Lines::input(x[R + r]);
      }
      HWY_UNROLL(16)
      for (int v = 0; v < V; ++v) {
        Lines::add(tile[r][v], weights[v], input);
      }
    }
    x += R * Lines::kWords;
  }
  // Loads scales before it stores sums: compilers assume that a store may change the scales.
  Vec weight_scales[V];
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    weight_scales[v] = load_scales(scales[v]);
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    const Vec scale = hn::Set(floats, rows.scales[r]);
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      float* const to = sums.at(r, v);
      const Vec both = hn::Mul(weight_scales[v], scale);
      const Vec product = hn::ConvertTo(floats, tile[r][v]);
      hn::StoreU(hn::MulAdd(both, product, sums.load(to)), floats, to);
    }
  }
  if (!rows.offsets) {
    return;
  }
  for (int v = 0; v < V; ++v) {
    const Vec offset = load_scales(scales[v] + std::ptrdiff_t{kPanel} * 2);
    for (int r = 0; r < R; ++r) {
      float* const to = sums.at(r, v);
      const auto total = static_cast<float>(rows.totals[r]);
      const Vec scaled = hn::Set(floats, rows.scales[r] * total);
      hn::StoreU(hn::MulAdd(offset, scaled, hn::LoadU(floats, to)), floats, to);
    }
  }
}

// Buffers of a task: a quarter of a MiB of stack.
struct Int8Buffers {
  alignas(64) float sums[kMaxTaskRows * kMaxTaskPanels * kPanel];
  alignas(64) std::uint32_t lines[kMostGroup / 2 * kPanel];
};

// Consecutive blocks of a task with the same number of rows.
struct BlockRun {
  int begin = 0;
  int end = 0;
};

// The rows of a task, which are whole blocks. Keeps the addresses of each block, since they are
// needed for each tile.
class TaskRows {
 public:
  TaskRows(const Int8Rows& x, const MatmulTask& task, bool offsets)
      : groups_(x.groups()),
        rows_(x.blocks.rows),
        group_words_(x.format.group / x.word_inputs()),
        group_(x.format.group),
        inputs_(round_up<std::int64_t>(x.inputs, PackedMatrix::kInputBlock)),
        offsets_(offsets) {
    const std::int64_t first = x.blocks.at(task.first_row);
    for (std::int64_t row = task.first_row; row < task.first_row + task.rows; ++blocks_) {
      const std::int64_t end = x.blocks.begin(first + blocks_ + 1);
      blocks_of_[blocks_] = {static_cast<int>(row - task.first_row), static_cast<int>(end - row),
                             x.words + row * x.row_words(), x.scales + row, x.totals + row};
      row = end;
    }
    while (large_ < blocks_ && size(large_) == size(0)) {
      ++large_;
    }
  }

  int blocks() const { return blocks_; }
  BlockRun large_blocks() const { return {0, large_}; }
  BlockRun small_blocks() const { return {large_, blocks_}; }
  // Returns the first row of a block, counted from the first row of the task.
  int begin(int block) const { return blocks_of_[block].begin; }
  int size(int block) const { return blocks_of_[block].rows; }
  std::int64_t groups() const { return groups_; }
  std::int64_t group_inputs(std::int64_t group) const {
    return std::min(group_, inputs_ - group * group_);
  }
  GroupRows at(int block, std::int64_t group) const {
    const Block& of = blocks_of_[block];
    return {of.words + group * group_words_ * of.rows, of.scales + group * rows_,
            of.totals + group * rows_, group_inputs(group), offsets_};
  }

 private:
  struct Block {
    int begin;
    int rows;
    const std::uint32_t* words;
    const float* scales;
    const std::int32_t* totals;
  };
  std::int64_t groups_;
  std::int64_t rows_;  // rows of all tasks, the stride from one group's scales to the next
  std::int64_t group_words_;
  std::int64_t group_;
  std::int64_t inputs_;
  bool offsets_;
  int blocks_ = 0;
  int large_ = 0;
  Block blocks_of_[kMaxTaskRows];
};

// The scales and codes of a vector of outputs in its first group.
struct VecLines {
  const std::byte* scales = nullptr;
  const std::byte* codes = nullptr;
};

template <class Lines>
VecLines lines_of(const PackedMatrix& weights, std::int64_t first_panel, int vec) {
  const int output = vec % kPanelVecs * kLanes;
  const std::byte* const panel =
      weights.data + (first_panel + vec / kPanelVecs) * weights.panel_bytes();
  return {panel + std::ptrdiff_t{output} * 2,
          panel + weights.scale_bytes() + std::ptrdiff_t{output} * Lines::kOutputBytes};
}

// Multiplies few rows. Each code is read once, panels in memory order.
template <int R, class Lines>
void multiply_direct(const MatmulOperands& operands, const MatmulTask& task, const TaskRows& rows,
                     Int8Buffers& buffers) {
  constexpr int V = tile_vecs(R);
  const PackedMatrix& weights = *operands.weights;
  const int vecs = task.panels * kPanelVecs;
  const std::int64_t step_groups = kDirectWords * Lines::kWordInputs / weights.format.group;
  const auto multiply = [&]<int kVecs>(std::integral_constant<int, kVecs> /*vectors*/, int vec,
                                       std::int64_t begin, std::int64_t end) HWY_ATTR {
    const std::byte* lines[kVecs];
    const std::byte* scales[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const VecLines of = lines_of<Lines>(weights, task.first_panel, vec + v);
      scales[v] = of.scales + begin * weights.group_bytes();
      lines[v] = of.codes + begin * weights.group_bytes();
    }
    for (std::int64_t group = begin; group < end; ++group) {
      multiply_tile<R, kVecs, Lines, true>(
          rows.at(0, group), lines, scales,
          {buffers.sums + vec * kLanes, std::int64_t{vecs} * kLanes, group > 0});
      for (int v = 0; v < kVecs; ++v) {
        lines[v] += weights.group_bytes();
        scales[v] += weights.group_bytes();
      }
    }
  };
  for (std::int64_t begin = 0; begin < rows.groups(); begin += step_groups) {
    const std::int64_t end = std::min(rows.groups(), begin + step_groups);
    int vec = 0;
    for (; vec + V <= vecs; vec += V) {
      multiply(std::integral_constant<int, V>(), vec, begin, end);
    }
    for (; vec < vecs; vec += 2) {
      multiply(std::integral_constant<int, 2>(), vec, begin, end);
    }
  }
}

// For many rows, dot instructions unpack codes again for each tile, which costs less than storing
// the unpacked words. Other instruction sets read words that were unpacked once.
template <class Lines>
constexpr bool kInPlace = std::is_same_v<Lines, W8Dot> || std::is_same_v<Lines, W4Dot>;
template <class Lines>
using ManyLines = std::conditional_t<kInPlace<Lines>, Lines, UnpackedWords<Lines>>;

// One group of a panel.
struct PanelGroup {
  const std::byte* scales = nullptr;
  const std::byte* lines = nullptr;  // read by ManyLines
  float* sums = nullptr;             // [rows of the task][32]
  const std::byte* next = nullptr;   // codes to prefetch
  std::int64_t share = 0;            // bytes of them that each block prefetches
};

// Multiplies blocks of R rows each. One function handles all of them, because a tile takes little
// longer than a call.
template <int R, class Lines>
HWY_NOINLINE void multiply_blocks(const TaskRows& rows, const BlockRun& run, std::int64_t group,
                                  const PanelGroup& panel) {
  constexpr int V = std::min(tile_vecs(R), kPanelVecs);
  for (int block = run.begin; block < run.end; ++block) {
    if constexpr (kInPlace<Lines>) {
      prefetch(panel.next + block * panel.share, panel.share);
    }
    const GroupRows of_block = rows.at(block, group);
    for (int vec = 0; vec < kPanelVecs; vec += V) {
      const std::byte* lines[V];
      const std::byte* scales[V];
      for (int v = 0; v < V; ++v) {
        lines[v] = panel.lines + std::ptrdiff_t{vec + v} * kLanes * 4;
        scales[v] = panel.scales + std::ptrdiff_t{vec + v} * kLanes * 2;
      }
      multiply_tile<R, V, ManyLines<Lines>, false>(
          of_block, lines, scales,
          {panel.sums + std::ptrdiff_t{rows.begin(block)} * kPanel + vec * kLanes, kPanel,
           group > 0});
    }
  }
}

template <class Lines, int... kBefore>
void multiply_run(const TaskRows& rows, const BlockRun& run, std::int64_t group,
                  const PanelGroup& panel,
                  std::integer_sequence<int, kBefore...> /*row counts - 1*/) {
  using Multiply = void (*)(const TaskRows&, const BlockRun&, std::int64_t, const PanelGroup&);
  static constexpr Multiply kByRows[] = {&multiply_blocks<kBefore + 1, Lines>...};
  if (run.begin < run.end) {
    kByRows[rows.size(run.begin) - 1](rows, run, group, panel);
  }
}

// Multiplies many rows. Unless codes are read in place, each group of a panel is unpacked once for
// all rows. Sums are stored as soon as they are complete, while they are in L1.
template <class Lines>
void multiply_many(const MatmulOperands& operands, const MatmulTask& task, const TaskRows& rows,
                   Int8Buffers& buffers) {
  const PackedMatrix& weights = *operands.weights;
  const std::int64_t group_words = weights.format.group / Lines::kWordInputs;
  // As many groups of a panel as keep the rows' words in L2, to read long runs of memory.
  const std::int64_t step_groups = std::max<std::int64_t>(
      1, std::min(kMaxTaskRows * kStepWords / task.rows, 4 * kStepWords) / group_words);
  const std::int64_t share =
      prefetched_bytes<Lines>(weights.format.group, static_cast<int>(rows.blocks()));
  const auto multiply = [&](const BlockRun& run, std::int64_t group, const PanelGroup& of) {
    multiply_run<Lines>(rows, run, group, of,
                        std::make_integer_sequence<int, tile_rows<Lines>()>());
  };
  for (std::int64_t begin = 0; begin < rows.groups(); begin += step_groups) {
    const std::int64_t end = std::min(rows.groups(), begin + step_groups);
    for (int panel = 0; panel < task.panels; ++panel) {
      const VecLines first = lines_of<Lines>(weights, task.first_panel, panel * kPanelVecs);
      for (std::int64_t g = begin; g < end; ++g) {
        PanelGroup of{.scales = first.scales + g * weights.group_bytes(),
                      .lines = first.codes + g * weights.group_bytes(),
                      .sums = buffers.sums + std::ptrdiff_t{panel} * task.rows * kPanel,
                      .next = first.codes + (g + kGroupsAhead) * weights.group_bytes(),
                      .share = share};
        if constexpr (!kInPlace<Lines>) {
          unpack_words<Lines>(of.lines, rows.group_inputs(g), buffers.lines);
          of.lines = reinterpret_cast<const std::byte*>(buffers.lines);
        }
        if (g + 1 < rows.groups()) {
          multiply(rows.large_blocks(), g, of);
          multiply(rows.small_blocks(), g, of);
          continue;
        }
        for (int block = 0; block < rows.blocks(); ++block) {
          const PanelRows out{task.first_row + rows.begin(block), rows.size(block),
                              task.first_panel + panel};
          expect_rows(operands, out);
          multiply({block, block + 1}, g, of);
          finish_rows(operands, out, of.sums + std::ptrdiff_t{rows.begin(block)} * kPanel, kPanel);
        }
      }
    }
  }
}

template <class Lines>
void multiply_task(const MatmulOperands& operands, const MatmulTask& task) {
  Int8Buffers buffers;
  const TaskRows rows(*operands.int8, task, !operands.weights->format.symmetric);
  if (task.rows == 1) {
    multiply_direct<1, Lines>(operands, task, rows, buffers);
    finish_task(operands, task, buffers.sums);
  } else if (task.rows == 2) {
    multiply_direct<2, Lines>(operands, task, rows, buffers);
    finish_task(operands, task, buffers.sums);
  } else {
    multiply_many<Lines>(operands, task, rows, buffers);
  }
}

void multiply_int8_here(const MatmulOperands& operands, const MatmulTask& task) {
  const Int8Rows& x = *operands.int8;
  const bool dot = x.isa == MatmulIsa::kDot;
  if (x.format.kind == WeightKind::kW4) {
    dot ? multiply_task<W4Dot>(operands, task) : multiply_task<W4Words>(operands, task);
  } else if (dot) {
    multiply_task<W8Dot>(operands, task);
  } else {
    x.fours() ? multiply_task<W8Sevens>(operands, task) : multiply_task<W8Words>(operands, task);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_int8_here);

void multiply_int8(const MatmulOperands& operands, const MatmulTask& task) {
  check(task.rows <= kMaxTaskRows && task.panels <= kMaxTaskPanels, "a task fits its buffers");
  HWY_DYNAMIC_DISPATCH(multiply_int8_here)(operands, task);
}

}  // namespace protean::cpu
#endif
