#pragma once

#include <cstdint>

#include "device/cpu/matmul.h"

namespace protean::cpu {

// A part that vectors multiply.
constexpr int kMaxPartRows = 240;
constexpr int kMaxPartPanels = 8;

struct MatmulOperands {
  const float* x = nullptr;
  const Int8Rows* int8 = nullptr;  // instead of x, where the weights want integers
  const PackedMatrix* weights = nullptr;
  std::span<float> out;
  MatmulOptions options;
};

// Rows [first_row, first_row + rows) times panels [first_panel, first_panel + panels): one task.
struct MatmulPart {
  std::int64_t first_row = 0;
  int rows = 0;
  std::int64_t first_panel = 0;
  int panels = 0;

  int columns() const { return panels * PackedMatrix::kPanel; }
};

// A part's rows, cut into tiles of nearly the same size.
struct Tiles {
  int rows = 0;
  int count = 0;

  int begin(int tile) const { return rows * tile / count; }
  int size(int tile) const { return begin(tile + 1) - begin(tile); }
};

}  // namespace protean::cpu
