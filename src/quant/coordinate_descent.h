#pragma once

#include <span>

#include "device/cpu/team.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

// Lowers a matrix's output error over all of the text by changing its codes on the grids that it
// has (cyclic coordinate descent as in QuantEase, Behdin et al. 2023). Sets the code of one input
// after another in each row to the value that best compensates the errors of all others. `weights`
// are row-major [rows][inputs]. The result has the same bits for any number of threads. Takes about
// 5 * rows * inputs^2 multiply-adds and a copy of the Gram matrix. If the statistics are not
// finite, leaves the codes unchanged.
void descend(cpu::Team& team, std::span<const float> weights, const InputStatistics& inputs,
             QuantizedMatrix& matrix);

}  // namespace protean
