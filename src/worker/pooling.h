#pragma once

#include <span>

#include "device/cpu/team.h"

namespace protean {

// Adds rows [n][sums.size()] to `sums`, after rounding each value to a multiple of kPooledQuantum.
// Such sums are exact below 2^29, and so the same in any order and any pieces.
void add_rows(cpu::Team& team, std::span<const float> rows, std::span<double> sums);

}  // namespace protean
