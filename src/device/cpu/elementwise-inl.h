// RMS norm and SwiGLU of a piece of a row, for passes of their own and for kernels that make rows
// as they read them. Compiled once per instruction set.

#if defined(PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_
#undef PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_
#else
#define PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <span>

#include "device/cpu/lanes-inl.h"
#include "device/cpu/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

using Lane = hn::CappedTag<float, 1>;  // what is left of a row, by the same arithmetic

// What all of a row is multiplied with: 1 / sqrt(mean(x^2) + eps).
inline float norm_scale(const float* x, std::size_t count, float eps) {
  const Floats floats;
  constexpr std::size_t kSums = 4;  // as many chains as hide an addition's latency
  Vec sums[kSums] = {hn::Zero(floats), hn::Zero(floats), hn::Zero(floats), hn::Zero(floats)};
  std::size_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
    for (std::size_t k = 0; k < kSums; ++k) {
      const Vec v = hn::LoadU(floats, x + i + k * kLanes);
      sums[k] = hn::MulAdd(v, v, sums[k]);
    }
  }
  for (; i + kLanes <= count; i += kLanes) {
    const Vec v = hn::LoadU(floats, x + i);
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  const Vec all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  float squares = hn::GetLane(hn::SumOfLanes(floats, all));
  for (; i < count; ++i) {
    squares += x[i] * x[i];
  }
  return 1.0f / std::sqrt(squares / static_cast<float>(count) + eps);
}

inline void norm_run(const float* x, std::span<const float> weight, float scale, Element element,
                     float* out) {
  const std::size_t count = weight.size();
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
      auto v = hn::Mul(hn::LoadU(d, x + from), hn::Set(d, scale));
      v = hn::Mul(v, hn::LoadU(d, weight.data() + from));
      hn::StoreU(element == Element::kBf16 ? round_bf16(d, v) : v, d, out + from);
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

inline void swiglu_run(const float* gate, const float* up, std::size_t count, Element element,
                       float* out) {
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
      const auto g = hn::LoadU(d, gate + from);
      const auto divisor = hn::Add(hn::Set(d, 1.0f), exp(d, hn::Neg(g)));
      const auto v = hn::Mul(hn::Div(g, divisor), hn::LoadU(d, up + from));
      hn::StoreU(element == Element::kBf16 ? round_bf16(d, v) : v, d, out + from);
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
