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

// Searches the scales of AWQ (Lin et al. 2024). The weights of each input are multiplied by its
// scale, and the operation that computes the input divides by it, so that important inputs are
// rounded more finely. Returns the scales, all above 0, with the smallest error of the matrices'
// outputs over the calibration text. Tries |x|^a / |w|^b for a grid of exponents, including all
// scales 1. Inputs with the same number in `shared` get the same scale; if it is empty, each input
// has its own.
std::vector<float> search_scales(cpu::Team& team, WeightGroup matrices,
                                 const InputStatistics& inputs, const QuantFormat& format,
                                 std::span<const std::int32_t> shared = {});

// Rounds to grids that clip the largest weights of a group if this reduces the error of the outputs
// (AWQ's clipping), then runs descend() (coordinate_descent.h). Weights and statistics are scaled
// ones.
QuantizedMatrix round_clipped(cpu::Team& team, std::span<const float> weights,
                              const InputStatistics& inputs, const QuantFormat& format);

}  // namespace protean
