#include "device/cpu/matmul.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/dot.h"
#include "device/cpu/matmul_int8.h"
#include "device/cpu/matmul_part.h"
#include "device/cpu/matmul_tiles.h"
#include "device/cpu/matmul_vectors.h"
#include "device/cpu/tiles.h"
#include "hwy/cache_control.h"

namespace protean::cpu {
namespace {

// With fewer multiply-adds, waking a thread costs more than it saves.
constexpr std::int64_t kSerialWork = 1 << 16;
// Parts per thread, if there is enough work. The other threads then wait at most for a quarter of
// the slowest one's work.
constexpr std::int64_t kPartsPerThread = 4;
// With fewer rows, reading weights is the limit, which is faster if each matrix is read in longer
// pieces, and gating is little work.
constexpr std::int64_t kLeastGatedRows = 8;
// With fewer parts per thread, waiting for the slowest thread costs more than gated parts save.
constexpr std::int64_t kLeastPartsPerThread = 2;

// An output of this size does not stay in a cache until it is read. For tiles, writing it past the
// caches is then faster.
constexpr std::int64_t kStreamedBytes = std::int64_t{2} << 20;
constexpr std::int64_t kLeastStreamedRows = 64;

// How a product is cut into parts. The results do not depend on it.
struct Cut {
  std::int64_t row_parts = 1;
  std::int64_t panels_per_part = 1;
  std::int64_t panel_parts = 1;
};

// The largest part of a kernel, and the rows of a tile, which a part should at least have.
struct CutLimits {
  std::int64_t rows = kMaxPartRows;
  std::int64_t panels = kMaxPartPanels;
  std::int64_t tile_rows = kMaxVectorRows;
  std::int64_t least_panels = 1;  // panels of a part are a multiple of this, which divides `panels`
};

Cut cut(std::int64_t m, std::int64_t panels, int threads, const CutLimits& limits) {
  const std::int64_t wanted = kPartsPerThread * threads;
  const std::int64_t most = ceil_div(panels, limits.least_panels);
  Cut cut{.panels_per_part = limits.least_panels};
  cut.row_parts = std::max(ceil_div(m, limits.rows),
                           std::min(ceil_div(m, limits.tile_rows), ceil_div(wanted, most)));
  while (cut.panels_per_part * 2 <= limits.panels &&
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
    operands.weights->format.quantized() ? multiply_codes_tiled(operands, part, emulated)
                                         : multiply_tiled(operands, part, emulated);
  } else {
    multiply_vectors(operands, part);
  }
  if (operands.out.streamed) {
    hwy::FlushStream();
  }
}

// A product and its cut.
struct CutProduct {
  MatmulOperands operands;
  Cut parts;

  std::int64_t tasks() const { return parts.row_parts * parts.panel_parts; }
};

MatmulPart part_at(const Cut& parts, const RowBlocks& blocks, std::int64_t panels,
                   std::int64_t index) {
  const auto begin_of = [&](std::int64_t row_part) {
    return blocks.begin(blocks.count * row_part / parts.row_parts);
  };
  // Consecutive tasks use the same weights.
  const std::int64_t row_part = index % parts.row_parts;
  const std::int64_t first_row = begin_of(row_part);
  const std::int64_t end_row = begin_of(row_part + 1);
  const std::int64_t first_panel = index / parts.row_parts * parts.panels_per_part;
  const std::int64_t end_panel = std::min(first_panel + parts.panels_per_part, panels);
  return {first_row, static_cast<int>(end_row - first_row), first_panel,
          static_cast<int>(end_panel - first_panel)};
}

CutLimits limits_for(MatmulUnit unit) {
  return has_tiles(unit) ? CutLimits{kMaxTiledRows, kMaxTiledPanels, 2 * kTileRows16} : CutLimits();
}

bool is_streamed(const MatmulTarget& target, std::int64_t rows, MatmulUnit unit) {
  constexpr std::int64_t kLineFloats = 16;
  const auto& [weights, out, options] = target;
  return has_tiles(unit) && !options.accumulate && options.bias == nullptr &&
         rows >= kLeastStreamedRows &&
         std::ssize(out) * std::int64_t{sizeof(float)} >= kStreamedBytes &&
         weights->outputs % kLineFloats == 0 &&
         reinterpret_cast<std::uintptr_t>(out.data()) % (kLineFloats * sizeof(float)) == 0;
}

template <class Rows>
MatmulOperands operands_of(const Rows& x, const PackedMatrix& weights, const MatmulOut& out) {
  MatmulOperands operands{.weights = &weights, .out = out};
  if constexpr (std::is_same_v<Rows, Int8Rows>) {
    operands.int8 = &x;
  } else {
    operands.x = &x;
  }
  return operands;
}

// Calls task(i) for all tasks, on all threads unless `serial`.
template <class Task>
void run_tasks(Team& team, std::int64_t tasks, bool serial, const Task& task) {
  if (!serial) {
    return team.run(tasks, [&](std::int64_t i, int) { task(i); });
  }
  for (std::int64_t i = 0; i < tasks; ++i) {
    task(i);
  }
}

template <class Rows>
void multiply_all(Team& team, const Rows& x, std::span<const MatmulTarget> targets) {
  const std::int64_t m = x.blocks.rows;
  std::int64_t work = 0;
  for (const auto& [weights, out, options] : targets) {
    check(std::ssize(out) == m * weights->outputs,
          "out is not as many rows of the matrix's outputs");
    work += m * weights->outputs * weights->inputs;
  }
  if (m == 0) {
    return;
  }
  const bool serial = work < kSerialWork;
  std::vector<CutProduct> products;
  std::int64_t tasks = 0;
  for (const MatmulTarget& target : targets) {
    const auto& [weights, out, options] = target;
    CutProduct& product = products.emplace_back();
    product.operands = operands_of(x, *weights,
                                   {.first = out.data(),
                                    .stride = weights->outputs,
                                    .streamed = is_streamed(target, m, x.unit)});
    product.operands.options = options;
    product.parts = cut(m, weights->panels(), serial ? 1 : team.threads(), limits_for(x.unit));
    tasks += product.tasks();
  }
  run_tasks(team, tasks, serial, [&](std::int64_t index) {
    auto product = products.begin();
    for (; index >= product->tasks(); ++product) {
      index -= product->tasks();
    }
    multiply_part(product->operands,
                  part_at(product->parts, x.blocks, product->operands.weights->panels(), index),
                  x.unit);
  });
}

// The outputs of one matrix for a part.
struct PartOutputs {
  static constexpr int kMost =
      std::max(kMaxPartRows * kMaxPartPanels, kMaxTiledRows* kMaxTiledPanels) / 2 *
      PackedMatrix::kPanel;
  alignas(64) float floats[kMost];
};

template <class Rows>
void gate_part(const Rows& x, const GatedMatrices& matrices, const MatmulPart& part,
               const Rows& to) {
  PartOutputs gate, up;
  const auto multiply = [&](const PackedMatrix& weights, PartOutputs& out) {
    const MatmulOut first{out.floats, part.columns(), part.first_row, part.first_panel, false};
    multiply_part(operands_of(x, weights, first), part, x.unit);
  };
  multiply(*matrices.gate, gate);
  multiply(*matrices.up, up);
  const std::int64_t first = part.first_panel * PackedMatrix::kPanel;
  gate_rows({.gate = gate.floats,
             .up = up.floats,
             .stride = part.columns(),
             .first_row = part.first_row,
             .rows = part.rows,
             .first_input = first,
             .inputs = std::min<std::int64_t>(part.columns(), to.inputs - first)},
            to);
}

// Returns false, without computing anything, if gating in parts is impossible or slower.
template <class Rows>
bool gate_all(Team& team, const Rows& x, const GatedMatrices& matrices, const Rows& to) {
  const PackedMatrix& gate = *matrices.gate;
  const std::int64_t m = x.blocks.rows;
  if (m < kLeastGatedRows || to.blocks != x.blocks) {
    return false;
  }
  const bool serial = 2 * m * gate.outputs * gate.inputs < kSerialWork;
  const int threads = serial ? 1 : team.threads();
  CutLimits limits = limits_for(x.unit);
  limits.panels /= 2;  // a part has two matrices
  limits.least_panels = std::max(1, to.format.group / PackedMatrix::kPanel);
  const Cut parts = cut(m, gate.panels(), threads, limits);
  const std::int64_t tasks = parts.row_parts * parts.panel_parts;
  if (threads > 1 && tasks < kLeastPartsPerThread * threads) {
    return false;
  }
  run_tasks(team, tasks, serial, [&](std::int64_t index) {
    gate_part(x, matrices, part_at(parts, x.blocks, gate.panels(), index), to);
  });
  return true;
}

}  // namespace

MatmulUnit best_unit() {
  return amx_available()   ? MatmulUnit::kAmx
         : bf16_dot_pays() ? MatmulUnit::kDot
                           : MatmulUnit::kVector;
}

void matmul(Team& team, const MatmulRows& x, std::span<const MatmulTarget> targets) {
  for (const MatmulTarget& target : targets) {
    const WeightFormat& format = target.weights->format;
    check(x.inputs == target.weights->inputs && !format.int8_inputs() &&
              (format.kind != WeightKind::kF32 || x.unit == MatmulUnit::kVector),
          "rows are for weights like these");
    check(!has_tiles(x.unit) || format.kind == WeightKind::kBf16 || format.symmetric ||
              (x.group_sums != nullptr && x.group == format.group),
          "rows are summed over groups like these");
  }
  multiply_all(team, x, targets);
}

void matmul(Team& team, const MatmulRows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const MatmulTarget target{&weights, out, options};
  matmul(team, x, {&target, 1});
}

void matmul(Team& team, std::span<const float> x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const std::int64_t bytes = arranged_rows_bytes(std::ssize(x) / weights.inputs, weights.inputs);
  std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
  matmul(team, arrange_rows(team, x, weights, memory), weights, out, options);
}

void matmul(Team& team, const Int8Rows& x, std::span<const MatmulTarget> targets) {
  for (const MatmulTarget& target : targets) {
    check(x.inputs == target.weights->inputs && x.format == target.weights->format,
          "integers are for weights like these");
  }
  multiply_all(team, x, targets);
}

void matmul(Team& team, const Int8Rows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const MatmulTarget target{&weights, out, options};
  matmul(team, x, {&target, 1});
}

std::optional<Int8Rows> matmul_gated(Team& team, const Int8Rows& x, const GatedMatrices& matrices,
                                     std::span<std::byte> memory) {
  const auto& [gate, up, down] = matrices;
  check(x.inputs == gate->inputs && x.format == gate->format && up->format == gate->format,
        "integers are for weights like these");
  check(up->inputs == gate->inputs && up->outputs == gate->outputs && down->inputs == up->outputs,
        "gate and up make what down reads");
  if (!down->format.int8_inputs()) {
    return std::nullopt;
  }
  const Int8Rows to = place_int8_rows(x.blocks.rows, *down, memory, x.unit);
  return gate_all(team, x, matrices, to) ? std::optional(to) : std::nullopt;
}

}  // namespace protean::cpu
