#pragma once

#include <span>

#include "device/cpu/team.h"

namespace protean {

// Adds up rows [n][sums.size()], each value rounded to a multiple of kPooledQuantum first. Sums of
// those are exact while they stay below 2^29, hence the same in whatever order and pieces.
void add_rows(cpu::Team& team, std::span<const float> rows, std::span<double> sums);

}  // namespace protean
