#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/cpu/bf16.h"

namespace protean {

// Returns inputs [rows][inputs] like those of layers: correlated, because a few directions carry
// most of them, and with `salient` channels that are far larger than the rest. All are exact in
// bf16.
inline std::vector<float> correlated_inputs(std::int64_t rows, std::int64_t inputs, int salient,
                                            unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const std::int64_t directions = inputs / 8 + 1;
  std::vector<float> basis(static_cast<std::size_t>(directions * inputs));
  for (float& value : basis) {
    value = normal(random) / std::sqrt(static_cast<float>(directions));
  }
  std::vector<float> out(static_cast<std::size_t>(rows * inputs));
  std::vector<float> amounts(static_cast<std::size_t>(directions));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (float& amount : amounts) {
      amount = normal(random);
    }
    for (std::int64_t i = 0; i < inputs; ++i) {
      float value = 0.3F * normal(random);
      for (std::int64_t d = 0; d < directions; ++d) {
        value +=
            amounts[static_cast<std::size_t>(d)] * basis[static_cast<std::size_t>(d * inputs + i)];
      }
      const float size = i % (inputs / (salient + 1) + 1) == 3 ? 20.0F : 1.0F;
      out[static_cast<std::size_t>(row * inputs + i)] =
          cpu::float_from(cpu::bf16_from(size * value));
    }
  }
  return out;
}

inline std::vector<float> random_weights(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.05F);
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& weight : weights) {
    weight = normal(random);
  }
  return weights;
}

// Returns the sum over inputs x and rows of ((approximate - exact) x)^2, in double.
inline double output_error(const std::vector<float>& exact, const std::vector<float>& approximate,
                           const std::vector<float>& inputs, std::int64_t width) {
  double error = 0.0;
  const auto n = static_cast<std::size_t>(width);
  for (std::size_t x = 0; x < inputs.size(); x += n) {
    for (std::size_t row = 0; row < exact.size(); row += n) {
      double sum = 0.0;
      for (std::size_t i = 0; i < n; ++i) {
        sum += (double{approximate[row + i]} - double{exact[row + i]}) * double{inputs[x + i]};
      }
      error += sum * sum;
    }
  }
  return error;
}

}  // namespace protean
