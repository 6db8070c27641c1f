#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

struct GptqOptions {
  double damping = 0.01;  // of the mean of the Hessian's diagonal
  // Inputs that vary most go first, while there are most others left to make good for them. The
  // groups stay where they are, so what is written needs no index and reading costs nothing.
  bool activation_order = false;
};

// GPTQ (Frantar et al. 2023): inputs are rounded one after the other, and those still to come take
// over what each rounding did to the outputs. Factored once for all matrices that read the same
// inputs. Immutable; rows are independent of each other, so threads may share the work.
class Gptq {
 public:
  // Fails if the statistics are not finite.
  static Result<Gptq> factor(const InputStatistics& inputs, const QuantFormat& format,
                             const GptqOptions& options = {});

  // Row-major weights [rows][inputs].
  QuantizedMatrix quantize(std::span<const float> weights) const;

 private:
  struct Work;

  Gptq() = default;
  void quantize_input(Work& work, std::int64_t position) const;
  void start_group(Work& work, std::int64_t group) const;

  QuantFormat format_;
  std::int64_t inputs_ = 0;
  bool in_order_ = true;
  std::vector<std::int64_t> order_;  // the input that is rounded at each position
  // Upper triangle U [inputs][inputs] with U^T U = (X^T X)^-1, in that order. Rows.
  std::vector<float> factor_;
};

}  // namespace protean
