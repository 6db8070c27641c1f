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

// Where a part's sums are. Panel by panel, those of one stay in L1; a row's all together are as far
// from the next row's as a power of two, where few lines of a cache can hold them.
struct PartSums {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t panel_stride = 0;

  static PartSums by_row(const float* data, const MatmulPart& part) {
    return {data, part.columns(), PackedMatrix::kPanel};
  }
  static PartSums by_panel(const float* data, const MatmulPart& part) {
    return {data, PackedMatrix::kPanel, std::int64_t{part.rows} * PackedMatrix::kPanel};
  }
};

// Writes a part's sums to out, adding what does not come from the product in an order that is
// always the same.
void finish_part(const MatmulOperands& operands, const MatmulPart& part, const PartSums& sums);

}  // namespace protean::cpu
