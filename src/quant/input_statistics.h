#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean {

// Statistics of a matrix's inputs x over the calibration text: the sums of |x| and of x x^T. They
// give the effect of any error of the weights on the outputs (an error d of a row costs d^T (sum x
// x^T) d), so the inputs need not be kept. Takes inputs^2 floats.
class InputStatistics {
 public:
  explicit InputStatistics(std::int64_t inputs);

  // Adds rows [n][inputs]. For kBf16 they must be exact in bf16; products are then exact too.
  void add(cpu::Team& team, std::span<const float> rows, cpu::Element element);

  // Changes the statistics as if every input i had been divided by divisors[i], which must not be
  // 0.
  void divide(std::span<const float> divisors);

  std::int64_t inputs() const { return inputs_; }
  std::int64_t rows() const { return rows_; }
  std::span<const float> gram() const { return gram_; }  // [inputs][inputs], sum of x x^T
  std::span<const double> magnitudes() const { return magnitudes_; }  // [inputs], sum of |x|

 private:
  std::int64_t inputs_;
  std::int64_t rows_ = 0;
  std::vector<float> gram_;
  std::vector<double> magnitudes_;
};

// Computes the squared error of the outputs: the sum of d^T (sum x x^T) d over rows d of errors
// [n][inputs]. Packs the Gram matrix once for many calls.
class OutputError {
 public:
  OutputError(cpu::Team& team, const InputStatistics& inputs);

  double of(std::span<const float> errors);

 private:
  cpu::Team& team_;
  std::vector<float> memory_;
  cpu::PackedMatrix gram_;
  std::vector<float> product_;
};

}  // namespace protean
