#pragma once

#include <span>

#include "device/cpu/team.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

// Moves a matrix's codes, on the grids it has, to where its outputs lose less over all of the text
// (cyclic coordinate descent, as QuantEase, Behdin et al. 2023): input after input, each row's code
// becomes the one that makes best good for the errors of all others. Row-major weights
// [rows][inputs]. The same bits for any number of threads. Some 5 rows inputs^2 multiply-adds, and
// the Gram matrix once more in memory; statistics that are not finite leave the codes as they are.
void descend(cpu::Team& team, std::span<const float> weights, const InputStatistics& inputs,
             QuantizedMatrix& matrix);

}  // namespace protean
