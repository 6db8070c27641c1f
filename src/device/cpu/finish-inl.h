// Writes the sums of a product to its output. Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_FINISH_INL_H_
#undef PROTEAN_DEVICE_CPU_FINISH_INL_H_
#else
#define PROTEAN_DEVICE_CPU_FINISH_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "device/cpu/lanes-inl.h"
#include "device/cpu/matmul_task.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// The outputs of one panel for some rows of the batch.
struct PanelRows {
  std::int64_t first_row = 0;
  int rows = 0;
  std::int64_t panel = 0;

  float* out(const MatmulOperands& operands) const { return operands.out.at(first_row, panel); }
};

// Prefetches the output that finish_rows() will write, unless it is streamed. Rows are far apart,
// and waiting for one line after another takes longer than a tile.
inline void expect_rows(const MatmulOperands& operands, const PanelRows& which) {
  if (operands.out.streamed) {
    return;
  }
  constexpr int kLineFloats = 16;
  const float* out = which.out(operands);
  for (int r = 0; r < which.rows; ++r, out += operands.out.stride) {
    HWY_UNROLL(2)
    for (int i = 0; i < PackedMatrix::kPanel; i += kLineFloats) {
      hwy::Prefetch(out + i);
    }
  }
}

// Writes rows of a panel. Adds bias and previous output in a fixed order.
inline void finish_rows(const MatmulOperands& operands, const PanelRows& which, const float* sums,
                        std::int64_t row_stride) {
  const Floats floats;
  constexpr std::int64_t kPanel = PackedMatrix::kPanel;
  const std::int64_t outputs = operands.weights->outputs;
  const auto& [given_bias, accumulate] = operands.options;
  const float* const bias = given_bias == nullptr ? nullptr : given_bias + which.panel * kPanel;
  const std::int64_t count = std::min(kPanel, outputs - which.panel * kPanel);
  const std::int64_t in_vectors = count / kLanes * kLanes;
  float* out = which.out(operands);
  if (operands.out.streamed && count == kPanel) {
    for (int r = 0; r < which.rows; ++r, out += operands.out.stride, sums += row_stride) {
      HWY_UNROLL(4)
      for (std::int64_t i = 0; i < kPanel; i += kLanes) {
        hn::Stream(hn::LoadU(floats, sums + i), floats, out + i);
      }
    }
    return;
  }
  for (int r = 0; r < which.rows; ++r, out += operands.out.stride, sums += row_stride) {
    for (std::int64_t i = 0; i < in_vectors; i += kLanes) {
      Vec sum = hn::LoadU(floats, sums + i);
      sum = bias == nullptr ? sum : hn::Add(sum, hn::LoadU(floats, bias + i));
      hn::StoreU(accumulate ? hn::Add(hn::LoadU(floats, out + i), sum) : sum, floats, out + i);
    }
    for (std::int64_t i = in_vectors; i < count; ++i) {
      const float sum = bias == nullptr ? sums[i] : sums[i] + bias[i];
      out[i] = accumulate ? out[i] + sum : sum;
    }
  }
}

// Writes a whole task, whose sums are [rows][columns].
inline void finish_task(const MatmulOperands& operands, const MatmulTask& task, const float* sums) {
  for (int r = 0; r < task.rows; ++r) {
    for (int panel = 0; panel < task.panels; ++panel) {
      finish_rows(operands, {task.first_row + r, 1, task.first_panel + panel},
                  sums + r * task.columns() + panel * PackedMatrix::kPanel, 0);
    }
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
