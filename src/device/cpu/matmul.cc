#include "device/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/dot.h"
#include "device/cpu/matmul_int8.h"
#include "device/cpu/matmul_part.h"
#include "device/cpu/matmul_tiles.h"
#include "device/cpu/matmul_vectors.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {
namespace {

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
  std::int64_t tile_rows = kMaxVectorRows;
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

void multiply_part(const MatmulOperands& operands, const MatmulPart& part, MatmulUnit unit) {
  const bool emulated = unit == MatmulUnit::kEmulatedAmx;
  if (operands.int8 != nullptr) {
    has_tiles(unit) ? multiply_int8_tiled(operands, part, emulated) : multiply_int8(operands, part);
  } else if (has_tiles(unit)) {
    multiply_tiled(operands, part, emulated);
  } else {
    multiply_vectors(operands, part);
  }
}

void multiply_all(Team& team, const RowBlocks& blocks, const MatmulOperands& operands,
                  MatmulUnit unit) {
  const PackedMatrix& weights = *operands.weights;
  const std::int64_t m = blocks.rows;
  check(std::ssize(operands.out) == m * weights.outputs,
        "out is not as many rows of the matrix's outputs");
  if (m == 0) {
    return;
  }
  const std::int64_t panels = weights.panels();
  const bool serial = m * weights.outputs * weights.inputs < kSerialWork;
  const Cut parts = cut(
      m, panels, serial ? 1 : team.threads(),
      has_tiles(unit) ? CutLimits{kMaxTiledRows, kMaxTiledPanels, 2 * kTileRows16} : CutLimits());
  const auto begin_of = [&](std::int64_t row_part) {
    return blocks.begin(blocks.count * row_part / parts.row_parts);
  };
  const auto run_part = [&](std::int64_t index, int) {
    // Neighbouring tasks share their weights.
    const std::int64_t row_part = index % parts.row_parts;
    const std::int64_t first_row = begin_of(row_part);
    const std::int64_t end_row = begin_of(row_part + 1);
    const std::int64_t first_panel = index / parts.row_parts * parts.panels_per_part;
    const std::int64_t end_panel = std::min(first_panel + parts.panels_per_part, panels);
    const MatmulPart part{first_row, static_cast<int>(end_row - first_row), first_panel,
                          static_cast<int>(end_panel - first_panel)};
    multiply_part(operands, part, unit);
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

}  // namespace

MatmulUnit best_unit() {
  return amx_available()   ? MatmulUnit::kAmx
         : bf16_dot_pays() ? MatmulUnit::kDot
                           : MatmulUnit::kVector;
}

void matmul(Team& team, const MatmulRows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  check(x.inputs == weights.inputs && !weights.format.int8_inputs() &&
            (weights.format.kind != WeightKind::kF32 || x.unit == MatmulUnit::kVector),
        "rows are for weights like these");
  multiply_all(team, x.blocks, {&x, nullptr, &weights, out, options}, x.unit);
}

void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const std::int64_t bytes = arranged_rows_bytes(std::ssize(x) / weights.inputs, weights.inputs);
  std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
  matmul(team, arrange_rows(team, x, weights, memory), weights, out, options);
}

void matmul(Team& team, const Int8Rows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  check(x.inputs == weights.inputs && x.format == weights.format,
        "integers are for weights like these");
  multiply_all(team, x.blocks, {nullptr, &x, &weights, out, options}, x.unit);
}

}  // namespace protean::cpu
