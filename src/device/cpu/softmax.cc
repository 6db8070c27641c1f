#include "device/cpu/softmax.h"

#include <algorithm>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

using Lane = hn::CappedTag<float, 1>;  // for the rest of a row, with the same arithmetic

template <class D>
HWY_INLINE hn::Vec<D> weights_of(D floats, hn::Vec<D> logits, const SoftmaxWeights& softmax) {
  const auto top = hn::Set(floats, softmax.top);
  const auto below = hn::Mul(hn::Sub(logits, top), hn::Set(floats, softmax.scale));
  // An infinite logit minus itself would be a NaN.
  const auto weights =
      hn::IfThenElse(hn::Eq(logits, top), hn::Set(floats, 1.0f), exp(floats, below));
  return hn::IfThenElseZero(hn::Ge(weights, hn::Set(floats, softmax.least)), weights);
}

void compute_weights(const SoftmaxWeights& softmax, std::span<const float> logits, float* to) {
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= logits.size(); from += hn::Lanes(d)) {
      hn::StoreU(weights_of(d, hn::LoadU(d, logits.data() + from), softmax), d, to + from);
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

double sum_weights(const SoftmaxWeights& softmax, std::span<const float> logits) {
  double sum = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats floats;
  const hn::Half<Floats> half;
  const hn::Rebind<double, decltype(half)> doubles;
  auto lower = hn::Zero(doubles);
  auto upper = hn::Zero(doubles);
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Vec weights = weights_of(floats, hn::LoadU(floats, logits.data() + i), softmax);
    lower = hn::Add(lower, hn::PromoteTo(doubles, hn::LowerHalf(half, weights)));
    upper = hn::Add(upper, hn::PromoteTo(doubles, hn::UpperHalf(half, weights)));
  }
  sum = hn::GetLane(hn::SumOfLanes(doubles, hn::Add(lower, upper)));
#endif
  const Lane lane;
  for (; i < logits.size(); ++i) {
    sum += double{hn::GetLane(weights_of(lane, hn::LoadU(lane, logits.data() + i), softmax))};
  }
  return sum;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(compute_weights);
HWY_EXPORT(sum_weights);

std::span<const float> block_of(std::span<const float> logits, std::size_t i) {
  const std::size_t first = i * kSumBlock;
  return logits.subspan(first, std::min(kSumBlock, logits.size() - first));
}

}  // namespace

void SoftmaxWeights::compute(std::span<const float> logits, std::span<float> weights) const {
  check(weights.size() == logits.size(), "a weight for each logit");
  HWY_DYNAMIC_DISPATCH(compute_weights)(*this, logits, weights.data());
}

void SoftmaxWeights::sum(std::span<const float> logits, std::span<double> sums) const {
  check(sums.size() == softmax_blocks(logits.size()), "a sum for each block");
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = HWY_DYNAMIC_DISPATCH(sum_weights)(*this, block_of(logits, i));
  }
}

double SoftmaxWeights::total(std::span<const float> logits) const {
  double sum = 0;
  for (std::size_t i = 0; i < softmax_blocks(logits.size()); ++i) {
    sum += HWY_DYNAMIC_DISPATCH(sum_weights)(*this, block_of(logits, i));
  }
  return sum;
}

}  // namespace protean::cpu
#endif
