#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "device/cpu/team.h"
#include "measure/stopwatch.h"

namespace protean {

// What this machine can do at best while nothing else is asked of it (device/cpu/ceilings.h).
struct Ceilings {
  double read_bytes_per_s = 0;
  double operations_per_s = 0;       // a multiply-add is two; operands come from L1
  double int8_operations_per_s = 0;  // of AMX; 0 where there is none
  // The same of AMX with operands that stay in tiles, which no product can reach.
  double tile_operations_per_s = 0;
  double tile_int8_operations_per_s = 0;
};

// Medians of so many runs. Fills the memory, which should be well above the caches, with noise.
Ceilings measure_ceilings(cpu::Team& team, std::span<std::byte> memory, const Stopwatch& stopwatch,
                          int repeat);

// What the multiply ceiling is of.
std::string_view multiplier_name();

}  // namespace protean
