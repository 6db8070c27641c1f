#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/input_statistics.h"

namespace protean {

// Zeros two of every four consecutive inputs of each row of weights [rows][inputs]: those with the
// smallest |weight| * the size of the input over the calibration text (Wanda). Of a last group of
// fewer than four inputs, at most two stay.
void prune_two_of_four(std::span<float> weights, std::int64_t inputs,
                       std::span<const float> input_sizes);

// Returns the square root of the sum of x^2 of each input.
std::vector<float> input_sizes(const InputStatistics& inputs);

// Returns the importance of each run of `run` consecutive inputs of a matrix [outputs][inputs]: the
// squared error of all outputs over the calibration text if these inputs were removed.
std::vector<double> run_importance(std::span<const float> weights, const InputStatistics& inputs,
                                   std::int64_t run);

// Returns the `count` indices with the largest values, in ascending order; of equal values, the
// first ones.
std::vector<int> largest(std::span<const double> values, int count);

}  // namespace protean
