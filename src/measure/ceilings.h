#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "device/cpu/team.h"
#include "measure/stopwatch.h"

namespace protean {

// The most that this machine can read and multiply (device/cpu/ceilings.h).
struct Ceilings {
  double read_bytes_per_s = 0;
  double operations_per_s = 0;       // a multiply-add counts as two; operands come from L1
  double int8_operations_per_s = 0;  // AMX only; 0 without AMX
  // Operations of AMX with operands that stay in tiles, which no product can reach.
  double tile_operations_per_s = 0;
  double tile_int8_operations_per_s = 0;
};

// Measures the ceilings as medians of `repeat` runs. Overwrites `memory`, which should be much
// larger than the caches.
Ceilings measure_ceilings(cpu::Team& team, std::span<std::byte> memory, const Stopwatch& stopwatch,
                          int repeat);

// Returns the name of what multiplies, such as "AMX bf16".
std::string_view multiplier_name();

// Returns the ceilings, such as "vector f32: reads 35.0 GB/s, multiplies 180 GFLOP/s".
std::string to_text(const Ceilings& ceilings);

}  // namespace protean
