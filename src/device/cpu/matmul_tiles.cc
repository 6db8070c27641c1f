#include "device/cpu/matmul_tiles.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/task_weights-inl.h"
#include "device/cpu/tile_products-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Steps whose weights of a panel stay in L1 while all rows of the task are multiplied with them.
constexpr std::int64_t kRunSteps = MatmulRows::kTileChunk / kTileInputs;
// Distance of prefetches for each block of rows.
constexpr std::int64_t kWeightsAheadBytes = 8192;
// Distance of prefetches of 2:4 weights: at least a run, because a run is unpacked at once.
constexpr std::int64_t kSparseAheadBytes = 24576;

// Bytes of one step of a panel as it is stored.
std::int64_t stored_step_bytes(const PackedMatrix& weights) {
  return kTileInputs * kPanel * weights.format.bits() / 8;
}

// Buffers of a task: half a MiB of stack.
struct TiledBuffers {
  alignas(64) std::uint32_t unpacked[kRunSteps * kPanelStepBytes / 4];  // of 2:4 weights
  alignas(64) float sums[kMaxTiledPanels * kMaxTiledRows * kPanel];     // [panel][row][32]
};

// Steps [first, end) of a panel; at most kRunSteps.
struct TiledRun {
  int panel = 0;  // counted from the first panel of the task
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// One or two tiles of rows and a panel.
struct TiledBlock {
  PanelRows out;
  float* sums = nullptr;  // [rows][32]; null if there is no block
  bool last = false;      // no run follows for this panel

  bool two() const { return out.rows > kTileRows16; }
  template <int kTile>
  float* tile() const {
    return sums + kTile / 2 * kTileRows16 * kPanel + kTile % 2 * kTileRows16;
  }
};

template <class Tiles>
class TiledTask {
 public:
  TiledTask(const MatmulOperands& operands, const MatmulTask& task, Tiles& tiles)
      : operands_(operands),
        x_(*operands.x),
        task_(task),
        tiles_(tiles),
        weights_(weights_of(operands, task)),
        sparse_(operands.weights->format.kind == WeightKind::kTwoOfFour),
        ahead_(weights_, weights_.group_bytes, blocks(),
               sparse_ ? kSparseAheadBytes : kWeightsAheadBytes) {}

  void multiply() {
    for (std::int64_t first = 0; first < weights_.groups; first += weights_.chunk) {
      const std::int64_t end = weights_.end_of_chunk(first);
      for (int panel = 0; panel < weights_.panels; ++panel) {
        for (std::int64_t from = first; from < end; from += kRunSteps) {
          multiply_run({panel, from, std::min(from + kRunSteps, end)});
        }
      }
    }
    store_rest<0>();
    finish(to_finish_.out.rows);
    to_finish_ = in_tiles_;
    finish(to_finish_.out.rows);
  }

 private:
  static TaskWeights weights_of(const MatmulOperands& operands, const MatmulTask& task) {
    const PackedMatrix& weights = *operands.weights;
    return {.data = weights.data + task.first_panel * weights.panel_bytes(),
            .panel_bytes = weights.panel_bytes(),
            .panels = task.panels,
            .group_bytes = stored_step_bytes(weights),
            .groups = weights.padded_inputs() / kTileInputs,
            .chunk = chunk_groups(task.rows, kTileBytes, kRunSteps)};
  }
  std::int64_t blocks() const { return ceil_div(task_.rows, kTileBlockRows); }

  // Returns the sums of a panel and row. Panels have their own sums only if inputs are cut into
  // chunks.
  float* sums(int panel, int row) {
    const int at = weights_.chunk < weights_.groups ? panel : panel % 2;
    return buffers_.sums + (std::ptrdiff_t{at} * kMaxTiledRows + row) * kPanel;
  }

  // Returns the weights of a run as tiles read them.
  const void* steps_of(const TiledRun& run) {
    const std::byte* const stored = weights_.at(run.panel, run.first);
    if (!sparse_) {
      return stored;
    }
    unpack_lines<Pairs, TwoOfFourLines, false>(stored, (run.end - run.first) * kTileInputs,
                                               buffers_.unpacked);
    return buffers_.unpacked;
  }

  void multiply_run(const TiledRun& run) {
    const std::int64_t input = run.first * kTileInputs;
    TileSteps from{
        .x = reinterpret_cast<const std::byte*>(x_.words) + x_.tile_offset(task_.first_row, input),
        .x_stride = x_.tile_stride(input),
        .weights = steps_of(run),
        .steps = run.end - run.first};
    // The sums of a single block stay in tiles from run to run.
    const bool stays = blocks() == 1 && run.first % weights_.chunk != 0;
    for (int row = 0; row < task_.rows; row += kTileBlockRows) {
      const TiledBlock block{{task_.first_row + row, std::min(kTileBlockRows, task_.rows - row),
                              task_.first_panel + run.panel},
                             sums(run.panel, row),
                             run.end == weights_.groups};
      block.two() ? multiply_block<true>(from, block, run.first > 0, stays)
                  : multiply_block<false>(from, block, run.first > 0, stays);
      from.x = static_cast<const std::byte*>(from.x) + 2 * from.x_stride;
    }
  }

  // Adds a run to the sums of a block, while vectors finish the previous block.
  template <bool kTwo>
  void multiply_block(TileSteps from, const TiledBlock& block, bool continues, bool stays) {
    if (block.last) {
      expect_rows(operands_, block.out);
    }
    if (!stays) {
      begin_block<kTwo>(from, block, continues);
      from.advance();
      if (in_tiles_.last) {
        to_finish_ = in_tiles_;
      }
    }
    in_tiles_ = block;
    const int rows =
        ceil_div(to_finish_.out.rows, static_cast<int>(std::max<std::int64_t>(1, from.steps)));
    multiply_steps<kTwo, TileElement::kBf16>(tiles_, from, [&]() HWY_ATTR {
      ahead_.ask();
      if (to_finish_.out.rows > 0) {
        finish(rows);
      }
    });
    finish(to_finish_.out.rows);
  }

  // Multiplies the first step. Stores each tile of the previous block's sums and loads this block's
  // just before it is needed, so that this overlaps with products of the other tiles.
  template <bool kTwo>
  void begin_block(const TileSteps& from, const TiledBlock& block, bool continues) {
    multiply_step<kTwo, TileElement::kBf16>(tiles_, from, [&](auto tile) HWY_ATTR {
      constexpr int kTile = decltype(tile)::value;
      store<kTile>();
      if (continues) {
        tiles_.template load<kTile>(block.tile<kTile>(), kPanelRowBytes);
      } else {
        tiles_.template zero<kTile>();
      }
    });
    if constexpr (!kTwo) {
      store_rest<2>();
    }
    ahead_.ask();
  }

  template <int kTile>
  HWY_INLINE void store() {
    if (in_tiles_.sums != nullptr && (kTile < 2 || in_tiles_.two())) {
      tiles_.template store<kTile>(in_tiles_.tile<kTile>(), kPanelRowBytes);
    }
  }
  template <int kTile>
  void store_rest() {
    store<kTile>();
    if constexpr (kTile < 3) {
      store_rest<kTile + 1>();
    }
  }

  // Finishes some rows of the block that is stored.
  HWY_NOINLINE void finish(int rows) {
    TiledBlock& block = to_finish_;
    rows = std::min(rows, block.out.rows);
    finish_rows(operands_, {block.out.first_row, rows, block.out.panel}, block.sums, kPanel);
    block.out.first_row += rows;
    block.out.rows -= rows;
    block.sums += std::ptrdiff_t{rows} * kPanel;
  }

  const MatmulOperands& operands_;
  const MatmulRows& x_;
  const MatmulTask& task_;
  Tiles& tiles_;
  const TaskWeights weights_;
  const bool sparse_;
  WeightsAhead ahead_;
  TiledBlock in_tiles_;
  TiledBlock to_finish_;
  TiledBuffers buffers_;
};

void multiply_tiled_here(const MatmulOperands& operands, const MatmulTask& task, bool emulated) {
  with_tiles(emulated, [&](auto& tiles) { TiledTask(operands, task, tiles).multiply(); });
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_tiled_here);

void multiply_tiled(const MatmulOperands& operands, const MatmulTask& task, bool emulated) {
  check(operands.weights->format.kind == WeightKind::kBf16 ||
            operands.weights->format.kind == WeightKind::kTwoOfFour,
        "codes have a product of their own");
  check_tiled(task);
  HWY_DYNAMIC_DISPATCH(multiply_tiled_here)(operands, task, emulated);
}

}  // namespace protean::cpu
#endif
