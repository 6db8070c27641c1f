// The order in which a task of a product with tiles reads its weights. Compiled once for each
// instruction set.

#if defined(PROTEAN_DEVICE_CPU_TASK_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_TASK_WEIGHTS_INL_H_
#undef PROTEAN_DEVICE_CPU_TASK_WEIGHTS_INL_H_
#else
#define PROTEAN_DEVICE_CPU_TASK_WEIGHTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "device/cpu/matmul_task.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/tiles.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr int kTileBlockRows = 2 * kTileRows16;

// The weights of a task in the order of multiplication: the first chunk of inputs of all panels,
// then the next chunk. A panel consists of groups of inputs: those that share scales, or for bf16
// those of one step.
struct TaskWeights {
  const std::byte* data = nullptr;  // data of the first panel
  std::int64_t panel_bytes = 0;
  int panels = 0;
  std::int64_t group_bytes = 0;
  std::int64_t groups = 0;
  std::int64_t chunk = 0;  // groups

  const std::byte* at(int panel, std::int64_t group) const {
    return data + panel * panel_bytes + group * group_bytes;
  }
  std::int64_t end_of_chunk(std::int64_t group) const { return std::min(group + chunk, groups); }
};

// Returns the groups of a chunk, a multiple of `least`: as many as keep the task's rows of a chunk
// in L2 while all panels are multiplied with them.
inline std::int64_t chunk_groups(int rows, std::int64_t group_row_bytes, std::int64_t least) {
  constexpr std::int64_t kChunkBytes = std::int64_t{1} << 18;
  const std::int64_t bytes = round_up<std::int64_t>(rows, kTileRows16) * group_row_bytes * least;
  return std::max<std::int64_t>(1, kChunkBytes / bytes) * least;
}

// Prefetches the weights of a task into L2, some lines at each step, because a core cannot have all
// of them outstanding at once.
class WeightsAhead {
 public:
  // Each of the `blocks` blocks of rows prefetches its share of `step_bytes` at each step, and adds
  // `ahead_bytes` to the distance between the prefetches and the products.
  WeightsAhead(const TaskWeights& weights, std::int64_t step_bytes, std::int64_t blocks,
               std::int64_t ahead_bytes)
      : weights_(weights), each_(ceil_div(step_bytes / kLine, blocks)) {
    begin_piece();
    const std::int64_t skipped = std::min(left_ - 1, blocks * ahead_bytes / kLine);
    at_ += skipped * kLine;
    left_ -= skipped;
  }

  HWY_INLINE void ask() {
    const std::int64_t lines = std::min(each_, left_);
    for (std::int64_t i = 0; i < lines; ++i, at_ += kLine) {
      __builtin_prefetch(at_, 0, 2);  // for reading, into L2; 3 would be L1
    }
    left_ -= lines;
    if (left_ == 0) {
      next_piece();
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;

  // Begins a piece, which is a chunk of one panel.
  void begin_piece() {
    at_ = weights_.at(panel_, group_);
    left_ = ceil_div((weights_.end_of_chunk(group_) - group_) * weights_.group_bytes, kLine);
  }
  HWY_NOINLINE void next_piece() {
    if (++panel_ == weights_.panels) {
      panel_ = 0;
      group_ += weights_.chunk;
    }
    if (group_ < weights_.groups) {
      begin_piece();
    } else {
      each_ = 0;
      left_ = 1;
    }
  }

  const TaskWeights weights_;
  std::int64_t each_;  // lines
  int panel_ = 0;
  std::int64_t group_ = 0;
  const std::byte* at_ = nullptr;
  std::int64_t left_ = 0;  // lines of this piece
};

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
