#include "device/cpu/matmul.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/dot.h"
#include "device/cpu/flush_denormals.h"
#include "device/cpu/matmul_few_rows.h"
#include "device/cpu/matmul_int8.h"
#include "device/cpu/matmul_task.h"
#include "device/cpu/matmul_tiles.h"
#include "device/cpu/matmul_vectors.h"
#include "device/cpu/tiles.h"
#include "hwy/cache_control.h"

namespace protean::cpu {
namespace {

// With fewer multiply-adds, waking a thread costs more than it saves.
constexpr std::int64_t kSerialWork = 1 << 16;
// Tasks per thread, if there is enough work. The other threads then wait at most for a quarter of
// the slowest one's work.
constexpr std::int64_t kPartsPerThread = 4;
// With fewer rows, reading weights is the limit, which is faster if each matrix is read in longer
// pieces, and gating is little work.
constexpr std::int64_t kLeastGatedRows = 8;
// With fewer tasks per thread, waiting for the slowest thread costs more than gated tasks save.
constexpr std::int64_t kLeastTasksPerThread = 2;

// An output of this size does not stay in a cache until it is read. For tiles, writing it past the
// caches is then faster, as measured for LM heads; it is slower for queries and smaller heads.
constexpr std::int64_t kStreamedBytes = std::int64_t{8} << 20;
constexpr std::int64_t kLeastStreamedRows = 64;

// How a product is cut into tasks. The results do not depend on it.
struct Cut {
  std::int64_t row_tasks = 1;
  std::int64_t panels_per_task = 1;
  std::int64_t panel_tasks = 1;
};

// The largest task of a kernel, and the rows of a tile, which a task should at least have.
struct CutLimits {
  std::int64_t rows = kMaxTaskRows;
  std::int64_t panels = kMaxTaskPanels;
  std::int64_t tile_rows = kMaxVectorRows;
  std::int64_t least_panels = 1;  // panels of a task are a multiple of this, which divides `panels`
};

Cut cut_product(std::int64_t m, std::int64_t panels, int threads, const CutLimits& limits) {
  const std::int64_t wanted = kPartsPerThread * threads;
  const std::int64_t most = ceil_div(panels, limits.least_panels);
  Cut cut{.panels_per_task = limits.least_panels};
  cut.row_tasks = std::max(ceil_div(m, limits.rows),
                           std::min(ceil_div(m, limits.tile_rows), ceil_div(wanted, most)));
  while (cut.panels_per_task * 2 <= limits.panels &&
         cut.row_tasks * ceil_div(panels, cut.panels_per_task * 2) >= wanted) {
    cut.panels_per_task *= 2;
  }
  cut.panel_tasks = ceil_div(panels, cut.panels_per_task);
  return cut;
}

void multiply_task(const MatmulOperands& operands, const MatmulTask& task, MatmulIsa isa) {
  // Kernels of the same product must treat denormals alike: scales and biases are for vectors even
  // if products are by tiles, which flush denormals always.
  [[maybe_unused]] const FlushDenormals flush;
  const bool emulated = isa == MatmulIsa::kEmulatedAmx;
  if (operands.int8 != nullptr) {
    has_tiles(isa) ? multiply_int8_tiled(operands, task, emulated) : multiply_int8(operands, task);
  } else if (has_tiles(isa) && are_few_rows(operands, task, emulated)) {
    multiply_few_rows(operands, task);
  } else if (has_tiles(isa)) {
    operands.weights->format.quantized() ? multiply_codes_tiled(operands, task, emulated)
                                         : multiply_tiled(operands, task, emulated);
  } else {
    multiply_vectors(operands, task);
  }
  if (operands.out.streamed) {
    hwy::FlushStream();
  }
}

// A product and its cut.
struct CutProduct {
  MatmulOperands operands;
  Cut cut;

  std::int64_t tasks() const { return cut.row_tasks * cut.panel_tasks; }
};

MatmulTask task_at(const Cut& cut, const RowBlocks& blocks, std::int64_t panels,
                   std::int64_t index) {
  const auto begin_of = [&](std::int64_t row_task) {
    return blocks.begin(blocks.count * row_task / cut.row_tasks);
  };
  // Consecutive tasks use the same weights.
  const std::int64_t row_task = index % cut.row_tasks;
  const std::int64_t first_row = begin_of(row_task);
  const std::int64_t end_row = begin_of(row_task + 1);
  const std::int64_t first_panel = index / cut.row_tasks * cut.panels_per_task;
  const std::int64_t end_panel = std::min(first_panel + cut.panels_per_task, panels);
  return {first_row, static_cast<int>(end_row - first_row), first_panel,
          static_cast<int>(end_panel - first_panel)};
}

CutLimits limits_for(MatmulIsa isa) {
  return has_tiles(isa) ? CutLimits{kMaxTiledRows, kMaxTiledPanels, 2 * kTileRows16} : CutLimits();
}

bool is_streamed(const MatmulTarget& target, std::int64_t rows, MatmulIsa isa) {
  constexpr std::int64_t kLineFloats = 16;
  const auto& [weights, out, options] = target;
  return has_tiles(isa) && !options.accumulate && options.bias == nullptr &&
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
                                    .streamed = is_streamed(target, m, x.isa)});
    product.operands.options = options;
    product.cut = cut_product(m, weights->panels(), serial ? 1 : team.threads(), limits_for(x.isa));
    tasks += product.tasks();
  }
  run_tasks(team, tasks, serial, [&](std::int64_t index) {
    auto product = products.begin();
    for (; index >= product->tasks(); ++product) {
      index -= product->tasks();
    }
    multiply_task(product->operands,
                  task_at(product->cut, x.blocks, product->operands.weights->panels(), index),
                  x.isa);
  });
}

// The outputs of one matrix for a task.
struct TaskOutputs {
  static constexpr int kMost =
      std::max(kMaxTaskRows * kMaxTaskPanels, kMaxTiledRows* kMaxTiledPanels) / 2 *
      PackedMatrix::kPanel;
  alignas(64) float floats[kMost];
};

template <class Rows>
void gate_task(const Rows& x, const GatedMatrices& matrices, const MatmulTask& task,
               const Rows& to) {
  TaskOutputs gate, up;
  const auto multiply = [&](const PackedMatrix& weights, TaskOutputs& out) {
    const MatmulOut first{out.floats, task.columns(), task.first_row, task.first_panel, false};
    multiply_task(operands_of(x, weights, first), task, x.isa);
  };
  multiply(*matrices.gate, gate);
  multiply(*matrices.up, up);
  const std::int64_t first = task.first_panel * PackedMatrix::kPanel;
  gate_rows({.gate = gate.floats,
             .up = up.floats,
             .stride = task.columns(),
             .first_row = task.first_row,
             .rows = task.rows,
             .first_input = first,
             .inputs = std::min<std::int64_t>(task.columns(), to.inputs - first),
             .activation = matrices.activation},
            to);
}

// Returns false, without computing anything, if gating in tasks is impossible or slower. Tasks
// have whole groups of `group` inputs of `to`, or any inputs if it is 0.
template <class Rows>
bool gate_all(Team& team, const Rows& x, const GatedMatrices& matrices, const Rows& to, int group) {
  const PackedMatrix& gate = *matrices.gate;
  const std::int64_t m = x.blocks.rows;
  if (m < kLeastGatedRows || to.blocks != x.blocks) {
    return false;
  }
  const bool serial = 2 * m * gate.outputs * gate.inputs < kSerialWork;
  const int threads = serial ? 1 : team.threads();
  CutLimits limits = limits_for(x.isa);
  limits.panels /= 2;  // a task has two matrices
  limits.least_panels = std::max(1, group / PackedMatrix::kPanel);
  const Cut cut = cut_product(m, gate.panels(), threads, limits);
  const std::int64_t tasks = cut.row_tasks * cut.panel_tasks;
  if (threads > 1 && tasks < kLeastTasksPerThread * threads) {
    return false;
  }
  run_tasks(team, tasks, serial, [&](std::int64_t index) {
    gate_task(x, matrices, task_at(cut, x.blocks, gate.panels(), index), to);
  });
  return true;
}

void check_rows(const MatmulRows& x, const PackedMatrix& weights) {
  const WeightFormat& format = weights.format;
  check(x.inputs == weights.inputs && !format.int8_inputs() &&
            (format.kind != WeightKind::kF32 || x.isa == MatmulIsa::kVector),
        "rows are for weights like these");
  check(!has_tiles(x.isa) || format.kind == WeightKind::kBf16 || format.symmetric ||
            (x.group_sums != nullptr && x.group == format.group),
        "rows are summed over groups like these");
}

void check_rows(const Int8Rows& x, const PackedMatrix& weights) {
  check(x.inputs == weights.inputs && x.format == weights.format,
        "integers are for weights like these");
}

template <class Rows>
void check_gated(const Rows& x, const GatedMatrices& matrices) {
  const PackedMatrix& up = *matrices.up;
  check_rows(x, *matrices.gate);
  check_rows(x, up);
  check(matrices.gate->outputs == up.outputs && matrices.down->inputs == up.outputs,
        "gate and up make what down reads");
}

}  // namespace

MatmulIsa best_isa() {
  return amx_available() ? MatmulIsa::kAmx : bf16_dot_pays() ? MatmulIsa::kDot : MatmulIsa::kVector;
}

void matmul(Team& team, const MatmulRows& x, std::span<const MatmulTarget> targets) {
  for (const MatmulTarget& target : targets) {
    check_rows(x, *target.weights);
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
    check_rows(x, *target.weights);
  }
  multiply_all(team, x, targets);
}

void matmul(Team& team, const Int8Rows& x, const PackedMatrix& weights, std::span<float> out,
            const MatmulOptions& options) {
  const MatmulTarget target{&weights, out, options};
  matmul(team, x, {&target, 1});
}

std::optional<MatmulRows> matmul_gated(Team& team, const MatmulRows& x,
                                       const GatedMatrices& matrices, std::span<std::byte> memory) {
  check_gated(x, matrices);
  // With vectors, a task of two matrices reads its rows again for half as many panels.
  if (!x.blocks.tiled || matrices.down->format.int8_inputs()) {
    return std::nullopt;
  }
  const MatmulRows to = place_rows(x.blocks.rows, *matrices.down, memory, x.isa);
  return gate_all(team, x, matrices, to, to.group) ? std::optional(to) : std::nullopt;
}

std::optional<Int8Rows> matmul_gated(Team& team, const Int8Rows& x, const GatedMatrices& matrices,
                                     std::span<std::byte> memory) {
  check_gated(x, matrices);
  if (!matrices.down->format.int8_inputs()) {
    return std::nullopt;
  }
  const Int8Rows to = place_int8_rows(x.blocks.rows, *matrices.down, memory, x.isa);
  return gate_all(team, x, matrices, to, to.format.group) ? std::optional(to) : std::nullopt;
}

}  // namespace protean::cpu
