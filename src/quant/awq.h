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

// Searches AWQ's scales (Lin et al. 2024). AWQ multiplies weights by a scale per input and divides
// the producer of the input by it, so that important inputs are rounded more finely at no cost
// later. Returns the scales, all above 0, with the least output error of these matrices over all of
// the text. Tries |x|^a / |w|^b for a grid of exponents, and 1. Inputs with the same number in
// `shared` get the same scale; if `shared` is empty, each has its own.
std::vector<float> search_scales(cpu::Team& team, WeightGroup matrices,
                                 const InputStatistics& inputs, const QuantFormat& format,
                                 std::span<const std::int32_t> shared = {});

// Rounds weights on grids that clip a group's largest weights if that lowers the output error
// (AWQ's clipping), then refines the codes by coordinate descent (coordinate_descent.h). Weights
// and statistics must be scaled already.
QuantizedMatrix round_clipped(cpu::Team& team, std::span<const float> weights,
                              const InputStatistics& inputs, const QuantFormat& format);

}  // namespace protean
