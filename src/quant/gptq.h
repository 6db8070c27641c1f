#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

struct GptqOptions {
  double damping = 0.01;  // share of the mean of the Hessian's diagonal
  // Rounds the inputs that vary most first, while most others are left to compensate. Groups stay
  // in place, so the file needs no group index.
  bool activation_order = false;
};

// GPTQ (Frantar et al. 2023): rounds one input after another, and changes the inputs not yet
// rounded so that they compensate the error in the outputs. Factored once for all matrices that
// read the same inputs. Immutable. Rows are independent, so threads may share the work.
class Gptq {
 public:
  // Fails if the statistics are not finite.
  static Result<Gptq> factor(const InputStatistics& inputs, const QuantFormat& format,
                             const GptqOptions& options = {});

  // Quantises row-major weights [rows][inputs].
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
  // Upper triangle U [inputs][inputs], row-major, with U^T U = (X^T X)^-1 for inputs in `order_`.
  std::vector<float> factor_;
};

}  // namespace protean
