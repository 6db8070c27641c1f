#pragma once

#include <cstdint>

#include "device/cpu/matmul.h"

namespace protean::cpu {

struct MatmulOperands {
  const float* x = nullptr;
  const PackedMatrix* weights = nullptr;
  float* out = nullptr;
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

// Writes a part's sums [rows][columns] to out, adding what does not come from the product in an
// order that is always the same.
void finish_part(const MatmulOperands& operands, const MatmulPart& part, float* sums);

}  // namespace protean::cpu
