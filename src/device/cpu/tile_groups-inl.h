// A task of a product over codes with tiles, independent of whether codes are multiplied as bf16 or
// as integers. Compiled once for each instruction set.
//
// Vectors scale the sums of a group and add them to those of earlier groups while tiles multiply
// the next groups: some rows before every second product, so that neither kind of instruction
// waits.

#if defined(PROTEAN_DEVICE_CPU_TILE_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_TILE_GROUPS_INL_H_
#undef PROTEAN_DEVICE_CPU_TILE_GROUPS_INL_H_
#else
#define PROTEAN_DEVICE_CPU_TILE_GROUPS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "device/cpu/finish-inl.h"
#include "device/cpu/matmul_tiles.h"
#include "device/cpu/task_weights-inl.h"
#include "device/cpu/tile_products-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Groups that are scaled together: one of 128 inputs, two of 64 or four of 32.
constexpr std::int64_t kRunInputs = 128;
constexpr int kRunGroups = 4;
// Bytes of a panel's weights that stay in L1 while all rows of a task are multiplied with them.
constexpr std::int64_t kPieceBytes = 16384;
// The distance of prefetches is at least a piece, because codes are unpacked a piece at a time.
constexpr std::int64_t kCodesAheadBytes = 16384;
constexpr int kScaledRows = 8;  // rows scaled at a time
constexpr std::int64_t kRunFloats = std::int64_t{kTileBlockRows} * PackedMatrix::kPanel;

// The products of a row block with some groups of a panel, and the sums to which they are added.
struct GroupRun {
  PanelRows out;
  std::int64_t group = 0;  // first group
  int groups = 0;
  bool first = false;  // begins with the first input, so that `sums` have no value yet
  bool last = false;
  const std::byte* weights = nullptr;  // weights of the first group
  float* products = nullptr;           // [groups][32][32] floats or integers
  float* sums = nullptr;               // [32][32]
};

struct GroupedBuffers {
  alignas(64) float sums[kMaxTiledPanels * kMaxTiledRows * PackedMatrix::kPanel];
  alignas(64) std::byte weights[kPieceBytes];              // unpacked
  alignas(64) float products[3][kRunGroups * kRunFloats];  // three runs; floats or integers
};

// Multiplies a task. The Kernel has:
//   kElement
//   void unpack(data of first group, first group, end group, room): kPanelStepBytes for each step
//   const void* weights(data of group, group, its unpacked weights)
//   TileSteps rows(first row, group): without weights
//   void scale<groups>(run, begin row, end row)
template <class Kernel, class Tiles>
class GroupedTask {
 public:
  GroupedTask(Kernel& kernel, const MatmulOperands& operands, const MatmulTask& task, Tiles& tiles)
      : kernel_(kernel),
        operands_(operands),
        task_(task),
        tiles_(tiles),
        weights_(weights_of(operands, task)),
        run_groups_(static_cast<int>(kRunInputs / operands.weights->format.group)),
        steps_(ceil_div<std::int64_t>(operands.weights->format.group, kStepInputs)),
        last_steps_(ceil_div(operands.weights->padded_inputs() -
                                 (weights_.groups - 1) * operands.weights->format.group,
                             kStepInputs)),
        piece_groups_(kPieceBytes / kPanelStepBytes / steps_),
        ahead_(weights_, weights_.group_bytes / steps_, ceil_div(task.rows, kTileBlockRows),
               kCodesAheadBytes) {}

  void multiply() {
    for (std::int64_t first = 0; first < weights_.groups; first += weights_.chunk) {
      const std::int64_t end = weights_.end_of_chunk(first);
      for (int panel = 0; panel < weights_.panels; ++panel) {
        for (std::int64_t group = first; group < end; group += piece_groups_) {
          multiply_piece(panel, group, std::min(group + piece_groups_, end));
        }
      }
    }
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    scale_next();
    scale_some(ready_->out.rows);
  }

 private:
  static constexpr std::int64_t kStepInputs =
      Kernel::kElement == TileElement::kBf16 ? kTileInputs : kTileInt8s;

  static TaskWeights weights_of(const MatmulOperands& operands, const MatmulTask& task) {
    const PackedMatrix& weights = *operands.weights;
    const int group = weights.format.group;
    return {
        .data = weights.data + task.first_panel * weights.panel_bytes(),
        .panel_bytes = weights.panel_bytes(),
        .panels = task.panels,
        .group_bytes = weights.group_bytes(),
        .groups = ceil_div(weights.inputs, std::int64_t{group}),
        .chunk = chunk_groups(task.rows, ceil_div<std::int64_t>(group, kStepInputs) * kTileBytes,
                              MatmulRows::kTileChunk / group)};
  }
  void multiply_piece(int panel, std::int64_t group, std::int64_t end) {
    kernel_.unpack(weights_.at(panel, group), group, end, buffers_.weights);
    const int kept = weights_.chunk < weights_.groups ? panel : panel % 2;
    for (int row = 0; row < task_.rows; row += kTileBlockRows) {
      const PanelRows out{task_.first_row + row, std::min(kTileBlockRows, task_.rows - row),
                          task_.first_panel + panel};
      float* const sums =
          buffers_.sums + (std::ptrdiff_t{kept} * kMaxTiledRows + row) * PackedMatrix::kPanel;
      for (std::int64_t first = group; first < end; first += run_groups_) {
        next_ = next_ == &runs_[2] ? &runs_[0] : next_ + 1;
        GroupRun& run = *next_;
        run.out = out;
        run.group = first;
        run.groups = static_cast<int>(std::min<std::int64_t>(run_groups_, end - first));
        run.first = first == 0;
        run.last = first + run.groups == weights_.groups;
        run.weights = weights_.at(panel, first);
        run.products = buffers_.products[next_ - runs_];
        run.sums = sums;
        const std::byte* const unpacked =
            buffers_.weights + (first - group) * steps_ * kPanelStepBytes;
        out.rows > kTileRows16 ? multiply_run<true>(run, unpacked)
                               : multiply_run<false>(run, unpacked);
      }
    }
  }

  template <bool kTwo>
  void multiply_run(const GroupRun& run, const std::byte* unpacked) {
    if (run.last) {
      expect_rows(operands_, run.out);
    }
    for (int g = 0; g < run.groups; ++g) {
      TileSteps at = kernel_.rows(run.out.first_row, run.group + g);
      at.weights = kernel_.weights(run.weights + g * weights_.group_bytes, run.group + g,
                                   unpacked + g * steps_ * kPanelStepBytes);
      at.steps = run.group + g + 1 == weights_.groups ? last_steps_ : steps_;
      multiply_step<kTwo, Kernel::kElement>(tiles_, at, [&](auto tile) HWY_ATTR {
        constexpr int kTile = decltype(tile)::value;
        store<kTile>();
        tiles_.template zero<kTile>();
        scale_before<kTile>();
      });
      if (!kTwo && in_tiles_->out.rows > kTileRows16) {
        store<2>();
        store<3>();
      }
      ahead_.ask();
      at.advance();
      if (g == 0) {
        scale_next();
        in_tiles_ = &run;
      }
      stored_to_ = run.products + g * kRunFloats;
      for (; at.steps > 0; at.advance()) {
        multiply_step<kTwo, Kernel::kElement>(
            tiles_, at, [&](auto tile) HWY_ATTR { scale_before<decltype(tile)::value>(); });
        ahead_.ask();
      }
    }
  }

  template <int kTile>
  HWY_INLINE void store() {
    if (stored_to_ != nullptr && (kTile < 2 || in_tiles_->out.rows > kTileRows16)) {
      tiles_.template store<kTile>(
          stored_to_ + (kTile / 2 * kTileRows16) * PackedMatrix::kPanel + kTile % 2 * kTileRows16,
          kPanelRowBytes);
    }
  }

  // Finishes scaling a run, and begins with the next one, whose products are now stored.
  void scale_next() {
    scale_some(ready_->out.rows - scaled_);
    ready_ = in_tiles_;
    scaled_ = 0;
  }
  // Scales some rows before a product: twice as often for integers, whose products take half the
  // time.
  template <int kTile>
  HWY_INLINE void scale_before() {
    if constexpr (kTile == 0 || (Kernel::kElement == TileElement::kInt8 && kTile == 2)) {
      scale_some(kScaledRows);
    }
  }
  HWY_INLINE void scale_some(int rows) {
    if (scaled_ < ready_->out.rows) {
      scale_rows(std::min(rows, ready_->out.rows - scaled_));
    }
  }
  HWY_NOINLINE void scale_rows(int rows) {
    const GroupRun& run = *ready_;
    scale_groups(run, scaled_, scaled_ + rows);
    if (run.last) {
      finish_rows(operands_, {run.out.first_row + scaled_, rows, run.out.panel},
                  run.sums + std::ptrdiff_t{scaled_} * PackedMatrix::kPanel, PackedMatrix::kPanel);
    }
    scaled_ += rows;
  }

  HWY_INLINE void scale_groups(const GroupRun& run, int begin, int end) {
    static_assert(kRunGroups == 4);
    switch (run.groups) {
      case 1:
        return kernel_.template scale<1>(run, begin, end);
      case 2:
        return kernel_.template scale<2>(run, begin, end);
      case 3:
        return kernel_.template scale<3>(run, begin, end);
      default:
        return kernel_.template scale<4>(run, begin, end);
    }
  }

  Kernel& kernel_;
  const MatmulOperands& operands_;
  const MatmulTask& task_;
  Tiles& tiles_;
  const TaskWeights weights_;
  const int run_groups_;
  const std::int64_t steps_, last_steps_;  // steps of a whole group and of the last one
  const std::int64_t piece_groups_;
  WeightsAhead ahead_;
  // One run is multiplied, one is in tiles or was just stored, and one is scaled.
  GroupRun runs_[3];
  GroupRun* next_ = runs_;
  const GroupRun* in_tiles_ = runs_;  // the run whose last group is in tiles
  float* stored_to_ = nullptr;        // destination of the products in tiles
  const GroupRun* ready_ = runs_;     // the run that is scaled
  int scaled_ = 0;                    // scaled rows of this run
  GroupedBuffers buffers_;
};

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
