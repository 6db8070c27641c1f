#pragma once

#include <cstddef>
#include <span>

namespace protean::cpu {

// The softmax weight of a logit, e^((logit - top) * scale), to a relative error of about 1e-7. It
// is 1 for a logit equal to `top`, even if infinite, and 0 if it is below `least` or the logit is a
// NaN. No logit may be above `top`.
struct SoftmaxWeights {
  float top = 0;
  float scale = 1;
  float least = 0;

  // weights.size() == logits.size()
  void compute(std::span<const float> logits, std::span<float> weights) const;

  // Computes sums[i] = the sum of the weights of logits [i * kSumBlock, (i + 1) * kSumBlock), in
  // double and in an order that depends only on the instruction set. There are
  // softmax_blocks(logits.size()) sums.
  void sum(std::span<const float> logits, std::span<double> sums) const;

  // Returns the sum over all logits: the results of sum() added in order.
  double total(std::span<const float> logits) const;
};
inline constexpr std::size_t kSumBlock = 1024;
constexpr std::size_t softmax_blocks(std::size_t logits) {
  return (logits + kSumBlock - 1) / kSumBlock;
}

}  // namespace protean::cpu
