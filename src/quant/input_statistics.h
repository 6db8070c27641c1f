#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean {

// Calibration statistics of a matrix's inputs x: the sums of |x| and of x x^T. An error d of a row
// of weights causes the squared error d^T (sum x x^T) d of the outputs over the calibration text,
// so the inputs themselves need not be stored. Takes inputs^2 floats.
class InputStatistics {
 public:
  explicit InputStatistics(std::int64_t inputs);

  // Adds rows [n][inputs]. With kBf16 they must be exact in bf16; products are then exact too.
  void add(cpu::Team& team, std::span<const float> rows, cpu::Element element);

  // Changes the statistics to those of inputs divided by divisors[i], none of which may be 0.
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

// Computes the squared error of outputs: the sum over rows d of errors [n][inputs] of d^T (sum x
// x^T) d. Packs the Gram matrix once for many calls.
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
