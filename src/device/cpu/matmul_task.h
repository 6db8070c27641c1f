#pragma once

#include <cstdint>

#include "device/cpu/matmul.h"

namespace protean::cpu {

// Limits of a task for vectors.
constexpr int kMaxTaskRows = 240;
constexpr int kMaxTaskPanels = 8;

// The destination of a product, row-major, beginning at one of its rows and panels.
struct MatmulOut {
  float* first = nullptr;
  std::int64_t stride = 0;  // floats from row to row
  std::int64_t first_row = 0;
  std::int64_t first_panel = 0;
  // Written past the caches. Then there is no bias and no accumulation, and each panel of a row is
  // whole cache lines. A task ends with hwy::FlushStream().
  bool streamed = false;

  float* at(std::int64_t row, std::int64_t panel) const {
    return first + (row - first_row) * stride + (panel - first_panel) * PackedMatrix::kPanel;
  }
};

struct MatmulOperands {
  const MatmulRows* x = nullptr;  // either x or int8 is set, depending on the weights
  const Int8Rows* int8 = nullptr;
  const PackedMatrix* weights = nullptr;
  MatmulOut out;
  MatmulOptions options;
};

// One task: rows [first_row, first_row + rows), which are whole blocks, times panels [first_panel,
// first_panel + panels).
struct MatmulTask {
  std::int64_t first_row = 0;
  int rows = 0;
  std::int64_t first_panel = 0;
  int panels = 0;

  int columns() const { return panels * PackedMatrix::kPanel; }
};

}  // namespace protean::cpu
