#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/ceilings.h"
#include "measure/time_attention.h"

namespace protean {

// One row of the table of kernels.
struct KernelRow {
  std::string like;
  std::string kernel;
  std::string shape;
  std::string dtype;
  std::int64_t rows = 0;  // rows of activations of each sequence
  KernelTime time;
  bool integers = false;

  double read_fraction(const Ceilings& ceilings) const {
    return time.bytes / (time.us * 1e-6) / ceilings.read_bytes_per_s;
  }
  double operations_fraction(const Ceilings& ceilings) const {
    const bool int8 = integers && ceilings.int8_operations_per_s > 0;
    return time.operations / (time.us * 1e-6) /
           (int8 ? ceilings.int8_operations_per_s : ceilings.operations_per_s);
  }
};

struct KernelTable {
  Ceilings ceilings;
  int threads = 0;
  std::vector<KernelRow> rows;
};

// Returns the lines above the rows.
std::string heading(const Ceilings& ceilings, int threads);
std::string to_text(const KernelRow& row, const Ceilings& ceilings);
std::string to_json(const KernelTable& table);

}  // namespace protean
