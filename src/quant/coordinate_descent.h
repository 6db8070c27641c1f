#pragma once

#include <span>

#include "device/cpu/team.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

// Improves the codes of a matrix, without changing its grids, by cyclic coordinate descent
// (QuantEase, Behdin et al. 2023): input by input, the code in each row becomes the one with the
// smallest error of the outputs over the calibration text, given all other codes. Weights are
// row-major [rows][inputs]. The result does not depend on the number of threads. Takes about 5 *
// rows * inputs^2 multiply-adds and a copy of the Gram matrix. Does nothing if the statistics are
// not finite.
void descend(cpu::Team& team, std::span<const float> weights, const InputStatistics& inputs,
             QuantizedMatrix& matrix);

}  // namespace protean
