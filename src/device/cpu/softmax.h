#pragma once

#include <cstddef>
#include <span>

namespace protean::cpu {

// e^((logit - top) * scale), to about 1e-7 relative: 1 where logit is top, infinite ones included,
// and 0 for what is below `least` or not a number. top is no less than any logit.
struct SoftmaxWeights {
  float top = 0;
  float scale = 1;
  float least = 0;

  // As many weights as logits.
  void compute(std::span<const float> logits, std::span<float> weights) const;

  // sums[i] = the weights of logits [i * kSumBlock, (i + 1) * kSumBlock), in double and in an order
  // that depends on the instruction set alone; there are softmax_blocks(logits.size()) of them.
  void sum(std::span<const float> logits, std::span<double> sums) const;

  // Of all logits: the sums of sum() one after another.
  double total(std::span<const float> logits) const;
};
inline constexpr std::size_t kSumBlock = 1024;
constexpr std::size_t softmax_blocks(std::size_t logits) {
  return (logits + kSumBlock - 1) / kSumBlock;
}

}  // namespace protean::cpu
