#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/team.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

// Matrices that read the same inputs, each row-major [rows][inputs].
using WeightGroup = std::span<const std::span<const float>>;

// AWQ (Lin et al. 2024): weights are multiplied by a scale per input, and whatever makes the input
// is divided by it, so that the inputs that matter are rounded more finely at no cost later.
// Returns the scales that lose least of these matrices' outputs, all above 0. Tried are
// |x|^a / |w|^b over a grid of exponents, 1 included, judged by the error over all of the text.
// Inputs with the same number in `shared` get the same scale; empty: each its own.
std::vector<float> search_scales(cpu::Team& team, WeightGroup matrices,
                                 const InputStatistics& inputs, const QuantFormat& format,
                                 std::span<const std::int32_t> shared = {});

// Rounds on grids that may leave out a group's largest weights where that loses less of the outputs
// (AWQ's clipping), then lets the inputs of a row make good for each other's errors
// (coordinate_descent.h). Weights and statistics are those after scaling.
QuantizedMatrix round_clipped(cpu::Team& team, std::span<const float> weights,
                              const InputStatistics& inputs, const QuantFormat& format);

}  // namespace protean
