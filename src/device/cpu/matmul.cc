#include "device/cpu/matmul.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef PROTEAN_DEVICE_CPU_MATMUL_ONCE
#define PROTEAN_DEVICE_CPU_MATMUL_ONCE

namespace protean::cpu {

// Rows [first_row, first_row + rows) times panels [first_panel, first_panel + panels): one task.
struct MatmulPart {
  std::int64_t first_row = 0;
  int rows = 0;
  std::int64_t first_panel = 0;
  int panels = 0;
};

struct MatmulOperands {
  const float* x = nullptr;
  const PackedMatrix* weights = nullptr;
  float* out = nullptr;
  MatmulOptions options;
};

constexpr int kMaxPartRows = 240;
constexpr int kMaxPartPanels = 8;
constexpr int kMaxTileRows = 12;

}  // namespace protean::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr int kPanel = PackedMatrix::kPanel;
constexpr int kUnitsPerPanel = kPanel / kUnit;
// Accumulators of a tile must leave registers for a unit of weights and a broadcast input.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
static_assert(kTileRows <= kMaxTileRows);
// Inputs read before the next tile of rows: the weights read meanwhile stay in the L2 cache for it,
// and the repacked inputs in L1. With a single tile there is nothing to keep.
constexpr std::int64_t kChunk = 256;
constexpr std::int64_t kSingleTileChunk = 1024;

// How many units a tile spans: few rows need many, or each sum's latency would set the pace.
constexpr int tile_units(int rows) {
  const int most = kLanes == 16 ? 12 : 6;  // tile registers / 2
  return rows * 4 <= most ? 4 : rows * 2 <= most ? 2 : 1;
}

// Asks for the line that is needed kAhead bytes later. A short run of lines in each of several
// panels is too little for the hardware to notice in time.
template <class Stored>
HWY_INLINE void prefetch_line(const Stored* line) {
  constexpr std::size_t kAhead = 8192, kCacheLine = 64;
  const auto* const later = reinterpret_cast<const char*>(line) + kAhead;
  for (std::size_t byte = 0; byte < kUnit * sizeof(Stored); byte += kCacheLine) {
    hwy::Prefetch(later + byte);
  }
}

// One tile: R rows of inputs, interleaved [input][R], times C units of weights, which begin at
// `weights[c]`; a line of the panel is kPanel elements. Continues the sums in memory.
template <int R, int C, class Stored>
HWY_NOINLINE void multiply_tile(const float* x, const Stored* const* weights, std::int64_t inputs,
                                float* sums, std::int64_t row_stride) {
  const Floats floats;
  Unit tile[R][C];
  const Stored* line[C];
  HWY_UNROLL(16)
  for (int c = 0; c < C; ++c) {
    line[c] = weights[c];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      tile[r][c] = load_sums<Stored>(sums + r * row_stride + c * kUnit);
    }
  }
  for (std::int64_t i = 0; i < inputs; ++i) {
    HWY_UNROLL(16)
    for (int c = 0; c < C; ++c) {
      const Unit w = load_unit(line[c]);
      if constexpr (R > 2) {
        prefetch_line(line[c]);
      }
      line[c] += kPanel;
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) {
        const Vec input = hn::Set(floats, x[r]);
        tile[r][c].a = hn::MulAdd(input, w.a, tile[r][c].a);
        tile[r][c].b = hn::MulAdd(input, w.b, tile[r][c].b);
      }
    }
    x += R;
  }
  HWY_UNROLL(16)
  for (int c = 0; c < C; ++c) {
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      store_sums<Stored>(tile[r][c], sums + r * row_stride + c * kUnit);
    }
  }
}

// Some rows of a part over one chunk of inputs.
template <class Stored>
struct Strip {
  const float* x = nullptr;        // interleaved
  const Stored* panels = nullptr;  // the chunk's first line of the part's first panel
  std::int64_t panel_elements = 0;
  int units = 0;
  std::int64_t inputs = 0;
  float* sums = nullptr;  // rows of `units` units
};

template <int R, class Stored>
void multiply_strip(const Strip<Stored>& strip) {
  constexpr int C = tile_units(R);
  const std::int64_t row_stride = std::int64_t{strip.units} * kUnit;
  const auto start_of = [&](int unit) {
    return strip.panels + unit / kUnitsPerPanel * strip.panel_elements +
           unit % kUnitsPerPanel * kUnit;
  };
  int unit = 0;
  for (; unit + C <= strip.units; unit += C) {
    const Stored* weights[C];
    for (int c = 0; c < C; ++c) {
      weights[c] = start_of(unit + c);
    }
    multiply_tile<R, C>(strip.x, weights, strip.inputs, strip.sums + unit * kUnit, row_stride);
  }
  for (; unit < strip.units; ++unit) {
    const Stored* weights = start_of(unit);
    multiply_tile<R, 1>(strip.x, &weights, strip.inputs, strip.sums + unit * kUnit, row_stride);
  }
}

// [rows][inputs] -> [inputs][rows], so that a tile reads one stream: rows far apart in memory by
// a power of two would fight for the same lines of the cache.
inline void interleave_rows(const float* x, std::int64_t row_stride, int rows, std::int64_t inputs,
                            float* out) {
  int r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> quad;
  const hn::Repartition<double, decltype(quad)> halves;
  for (; r + 4 <= rows; r += 4) {
    const float* const row = x + r * row_stride;
    std::int64_t i = 0;
    for (; i + 4 <= inputs; i += 4) {
      const auto r0 = hn::LoadU(quad, row + i);
      const auto r1 = hn::LoadU(quad, row + row_stride + i);
      const auto r2 = hn::LoadU(quad, row + 2 * row_stride + i);
      const auto r3 = hn::LoadU(quad, row + 3 * row_stride + i);
      const auto a = hn::BitCast(halves, hn::InterleaveLower(quad, r0, r1));
      const auto b = hn::BitCast(halves, hn::InterleaveLower(quad, r2, r3));
      const auto c = hn::BitCast(halves, hn::InterleaveUpper(quad, r0, r1));
      const auto d = hn::BitCast(halves, hn::InterleaveUpper(quad, r2, r3));
      float* const to = out + i * rows + r;
      hn::StoreU(hn::BitCast(quad, hn::InterleaveLower(halves, a, b)), quad, to);
      hn::StoreU(hn::BitCast(quad, hn::InterleaveUpper(halves, a, b)), quad, to + rows);
      hn::StoreU(hn::BitCast(quad, hn::InterleaveLower(halves, c, d)), quad, to + 2 * rows);
      hn::StoreU(hn::BitCast(quad, hn::InterleaveUpper(halves, c, d)), quad, to + 3 * rows);
    }
    for (; i < inputs; ++i) {
      for (int k = 0; k < 4; ++k) {
        out[i * rows + r + k] = row[k * row_stride + i];
      }
    }
  }
#endif
  for (; r < rows; ++r) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      out[i * rows + r] = x[r * row_stride + i];
    }
  }
}

template <class Stored, int... kBefore>
void multiply_rows(int rows, const Strip<Stored>& strip,
                   std::integer_sequence<int, kBefore...> /*up to kTileRows*/) {
  using Multiply = void (*)(const Strip<Stored>&);
  static constexpr Multiply kByRows[] = {&multiply_strip<kBefore + 1, Stored>...};
  kByRows[rows - 1](strip);
}

// Adds what does not come from this product, in an order that is always the same.
inline void finish(const MatmulOperands& operands, const MatmulPart& part, float* sums) {
  const std::int64_t outputs = operands.weights->outputs;
  const std::int64_t first = part.first_panel * kPanel;
  const std::int64_t columns = std::min<std::int64_t>(part.panels * kPanel, outputs - first);
  for (int r = 0; r < part.rows; ++r, sums += part.panels * kPanel) {
    float* const out = operands.out + (part.first_row + r) * outputs + first;
    if (operands.options.bias != nullptr) {
      for (std::int64_t i = 0; i < columns; ++i) {
        sums[i] += operands.options.bias[first + i];
      }
    }
    if (operands.options.accumulate) {
      for (std::int64_t i = 0; i < columns; ++i) {
        out[i] += sums[i];
      }
    } else {
      std::copy_n(sums, columns, out);
    }
  }
}

template <class Stored>
void multiply_part(const MatmulOperands& operands, const MatmulPart& part) {
  alignas(64) float sums[kMaxPartRows * kMaxPartPanels * kPanel];
  alignas(64) float interleaved[kMaxTileRows * kSingleTileChunk];
  const std::int64_t inputs = operands.weights->inputs;
  const std::int64_t panel_elements = inputs * kPanel;
  const int columns = part.panels * kPanel;
  const Stored* const panels =
      reinterpret_cast<const Stored*>(operands.weights->data) + part.first_panel * panel_elements;
  std::fill_n(sums, part.rows * columns, 0.0f);
  const int tiles = ceil_div(part.rows, kTileRows);
  const std::int64_t chunk = part.rows == 1 ? inputs : tiles == 1 ? kSingleTileChunk : kChunk;
  for (std::int64_t first = 0; first < inputs; first += chunk) {
    const std::int64_t count = std::min(chunk, inputs - first);
    for (int tile = 0; tile < tiles; ++tile) {
      const int begin = part.rows * tile / tiles;
      const int rows = part.rows * (tile + 1) / tiles - begin;
      const float* x = operands.x + (part.first_row + begin) * inputs + first;
      if (rows > 1) {
        interleave_rows(x, inputs, rows, count, interleaved);
        x = interleaved;
      }
      const Strip<Stored> strip{
          x,     panels + first * kPanel, panel_elements, part.panels * kUnitsPerPanel,
          count, sums + begin * columns};
      multiply_rows(rows, strip, std::make_integer_sequence<int, kTileRows>());
    }
  }
  finish(operands, part, sums);
}

void multiply(const MatmulOperands& operands, const MatmulPart& part) {
  if (operands.weights->element == Element::kF32) {
    multiply_part<float>(operands, part);
  } else {
    multiply_part<std::uint16_t>(operands, part);
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

Cut cut(std::int64_t m, std::int64_t panels, int threads) {
  const std::int64_t wanted = kPartsPerThread * threads;
  Cut cut;
  cut.row_parts =
      std::max(ceil_div<std::int64_t>(m, kMaxPartRows),
               std::min(ceil_div<std::int64_t>(m, kMaxTileRows), ceil_div(wanted, panels)));
  while (cut.panels_per_part < kMaxPartPanels &&
         cut.row_parts * ceil_div(panels, cut.panels_per_part * 2) >= wanted) {
    cut.panels_per_part *= 2;
  }
  cut.panel_parts = ceil_div(panels, cut.panels_per_part);
  return cut;
}

const std::byte* element_at(const PackedMatrix& matrix, std::int64_t row, std::int64_t input) {
  const std::int64_t panel = row / PackedMatrix::kPanel;
  const std::int64_t line = panel * matrix.inputs + input;
  const std::int64_t index = line * PackedMatrix::kPanel + row % PackedMatrix::kPanel;
  return matrix.data + index * element_bytes(matrix.element);
}

}  // namespace

void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const std::int64_t m = std::ssize(x) / weights.inputs;
  check(std::ssize(x) == m * weights.inputs, "x is not rows of the matrix's inputs");
  check(std::ssize(out) == m * weights.outputs, "out is not as many rows of the matrix's outputs");
  if (out.empty()) {
    return;
  }
  const MatmulOperands operands{x.data(), &weights, out.data(), options};
  const std::int64_t panels = weights.panels();
  const bool serial = m * weights.outputs * weights.inputs < kSerialWork;
  const Cut parts = cut(m, panels, serial ? 1 : team.threads());
  const auto run_part = [&](std::int64_t index, int) {
    // Neighbouring tasks share their weights.
    const std::int64_t row_part = index % parts.row_parts;
    const std::int64_t first_row = m * row_part / parts.row_parts;
    const std::int64_t end_row = m * (row_part + 1) / parts.row_parts;
    const std::int64_t first_panel = index / parts.row_parts * parts.panels_per_part;
    const std::int64_t end_panel = std::min(first_panel + parts.panels_per_part, panels);
    HWY_DYNAMIC_DISPATCH(multiply)
    (operands, {first_row, static_cast<int>(end_row - first_row), first_panel,
                static_cast<int>(end_panel - first_panel)});
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

void pack_panel(const PackedMatrix& matrix, std::int64_t panel, const float* rows, int row_count) {
  constexpr int kPanel = PackedMatrix::kPanel;
  // A cache line of each row at a time: the rows are far apart, the lines of the panel are not.
  constexpr std::int64_t kRun = 16;
  check(row_count >= 0 && row_count <= kPanel, "a panel has at most 32 rows");
  const auto write = [&](auto* lines, auto convert) {
    for (std::int64_t first = 0; first < matrix.inputs; first += kRun) {
      const std::int64_t end = std::min(first + kRun, matrix.inputs);
      for (int row = 0; row < kPanel; ++row) {
        for (std::int64_t i = first; i < end; ++i) {
          lines[i * kPanel + row] =
              row < row_count ? convert(rows[row * matrix.inputs + i]) : convert(0.0f);
        }
      }
    }
  };
  std::byte* const start =
      matrix.data + panel * kPanel * matrix.inputs * element_bytes(matrix.element);
  if (matrix.element == Element::kF32) {
    write(reinterpret_cast<float*>(start), [](float value) { return value; });
  } else {
    write(reinterpret_cast<std::uint16_t*>(start), bf16_from);
  }
}

void gather_rows(const PackedMatrix& table, std::span<const TokenId> ids, std::span<float> out) {
  check(std::ssize(out) == std::ssize(ids) * table.inputs, "out is not a row for every id");
  const std::int64_t stride = PackedMatrix::kPanel * element_bytes(table.element);
  float* to = out.data();
  for (const TokenId id : ids) {
    check(id >= 0 && id < table.outputs, "a row that the table does not have");
    const std::byte* from = element_at(table, id, 0);
    for (std::int64_t i = 0; i < table.inputs; ++i, from += stride) {
      if (table.element == Element::kF32) {
        std::memcpy(to++, from, sizeof(float));
      } else {
        std::uint16_t bits = 0;
        std::memcpy(&bits, from, sizeof(bits));
        *to++ = float_from(bits);
      }
    }
  }
}

}  // namespace protean::cpu
#endif
