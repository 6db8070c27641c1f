#pragma once

#include <cstdint>

#include "device/cpu/matmul.h"

namespace protean::cpu {

// A part that vectors multiply.
constexpr int kMaxPartRows = 240;
constexpr int kMaxPartPanels = 8;

// Where a product goes: floats of its elements, row by row, from one of them on.
struct MatmulOut {
  float* first = nullptr;
  std::int64_t stride = 0;  // from row to row
  std::int64_t first_row = 0;
  std::int64_t first_panel = 0;
  // Written past the caches; then nothing is added to the product or to what is there, and each
  // panel of a row is whole cache lines. A part ends with hwy::FlushStream.
  bool streamed = false;

  float* at(std::int64_t row, std::int64_t panel) const {
    return first + (row - first_row) * stride + (panel - first_panel) * PackedMatrix::kPanel;
  }
};

struct MatmulOperands {
  const MatmulRows* x = nullptr;  // one of the two, as the weights want it
  const Int8Rows* int8 = nullptr;
  const PackedMatrix* weights = nullptr;
  MatmulOut out;
  MatmulOptions options;
};

// Rows [first_row, first_row + rows), which are whole blocks, times panels [first_panel,
// first_panel + panels): one task.
struct MatmulPart {
  std::int64_t first_row = 0;
  int rows = 0;
  std::int64_t first_panel = 0;
  int panels = 0;

  int columns() const { return panels * PackedMatrix::kPanel; }
};

}  // namespace protean::cpu
