#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "quant/input_statistics.h"
#include "quant/quantized_matrix.h"

namespace protean {

struct GptqOptions {
  double damping = 0.01;  // relative to the mean of the Hessian's diagonal
  // Rounds the inputs that vary most first, while most others are left to compensate. Groups do not
  // change, so the result needs no index.
  bool activation_order = false;
};

// GPTQ (Frantar et al. 2023): inputs are rounded one after the other, and the error of each is
// compensated by the weights that are not yet rounded. One object serves all matrices with the same
// inputs. It is immutable, and rows are independent, so several threads may quantise.
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
  // Upper triangle U [inputs][inputs], row-major, with U^T U = (X^T X)^-1 in this order.
  std::vector<float> factor_;
};

}  // namespace protean
