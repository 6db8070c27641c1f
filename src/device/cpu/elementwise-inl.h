// RMS norm and activations of a part of a row, for separate passes and for kernels that compute
// rows while they read them. Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_
#undef PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_
#else
#define PROTEAN_DEVICE_CPU_ELEMENTWISE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/lanes-inl.h"
#include "device/cpu/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

using Lane = hn::CappedTag<float, 1>;  // for the rest of a row, with the same arithmetic

inline float sum_of_squares(const float* x, std::size_t count) {
  const Floats floats;
  constexpr std::size_t kSums = 4;  // this many independent sums hide the latency of additions
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
  return squares;
}

// Returns the factor of a row, 1 / sqrt(mean(x^2) + eps).
inline float norm_scale(const float* x, std::size_t count, float eps) {
  return 1.0f / std::sqrt(sum_of_squares(x, count) / static_cast<float>(count) + eps);
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

// Returns g / (1 + e^-g) to a relative error of 6e-7. For g below about -87 the result is less than
// 1e-38 * |g|, or 0.
HWY_INLINE Vec silu(Vec g) {
  const Floats floats;
  const Ints ints;
  const Vec limit = hn::Set(floats, 88.0f);
  const Vec x = hn::Max(hn::Neg(limit), hn::Min(limit, hn::Neg(g)));
  // x = n ln 2 + r, as in exp() (lanes-inl.h).
  const Vec whole = hn::MulAdd(x, hn::Set(floats, kLog2E), hn::Set(floats, kNoFraction));
  const Vec n = hn::Sub(whole, hn::Set(floats, kNoFraction));
  Vec r = hn::NegMulAdd(n, hn::Set(floats, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(floats, -2.12194440e-4f), r);
  // 1 + r + r^2 times a nearly minimax polynomial.
  Vec sum = hn::Set(floats, 0.00139262504f);
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.00836323295f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.0416665524f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.166665763f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.5f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(ints, whole)), hn::Set(ints, 127 << 23));
  const Vec divisor = hn::MulAdd(sum, hn::BitCast(floats, power), hn::Set(floats, 1.0f));
  // One Newton step takes a fifth of the time of a division.
  const Vec rough = hn::ApproximateReciprocal(divisor);
  const Vec off = hn::NegMulAdd(divisor, rough, hn::Set(floats, 1.0f));
  return hn::Mul(g, hn::MulAdd(rough, off, rough));
}

// Returns the sum of f(x[i]) in an order that depends only on `count`. f maps vectors of any
// length.
template <class F>
HWY_INLINE float sum_of(const float* x, std::size_t count, const F& f) {
  const Floats floats;
  Vec sums = hn::Zero(floats);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sums = hn::Add(sums, f(floats, hn::LoadU(floats, x + i)));
  }
  float total = hn::GetLane(hn::SumOfLanes(floats, sums));
  const Lane lane;
  for (; i < count; ++i) {
    total += hn::GetLane(f(lane, hn::LoadU(lane, x + i)));
  }
  return total;
}

// Returns erf(x) to an absolute error of 2e-7 (Abramowitz and Stegun, 7.1.26).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  const auto one = hn::Set(d, 1.0f);
  const auto size = hn::Abs(x);
  const auto t = hn::Div(one, hn::MulAdd(size, hn::Set(d, 0.3275911f), one));
  auto sum = hn::Set(d, 1.061405429f);
  sum = hn::MulAdd(sum, t, hn::Set(d, -1.453152027f));
  sum = hn::MulAdd(sum, t, hn::Set(d, 1.421413741f));
  sum = hn::MulAdd(sum, t, hn::Set(d, -0.284496736f));
  sum = hn::MulAdd(sum, t, hn::Set(d, 0.254829592f));
  const auto tail = hn::Mul(hn::Mul(sum, t), exp(d, hn::Neg(hn::Mul(size, size))));
  return hn::CopySign(hn::Sub(one, tail), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu(D d, V x) {
  const auto half = hn::Mul(x, hn::Set(d, 0.5f));
  return hn::MulAdd(half, erf(d, hn::Mul(x, hn::Set(d, 0.70710678f))), half);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh(D d, V x) {
  constexpr float kRoot2OverPi = 0.797884561f;
  const auto half = hn::Mul(x, hn::Set(d, 0.5f));
  const auto cube = hn::Mul(hn::Mul(x, x), hn::Mul(x, hn::Set(d, 0.044715f)));
  return hn::MulAdd(half, tanh(d, hn::Mul(hn::Add(x, cube), hn::Set(d, kRoot2OverPi))), half);
}

inline void swiglu_run(const float* gate, const float* up, std::size_t count, Element element,
                       float* out) {
  const Floats floats;
  const auto at = [&](const float* g, const float* u, float* to) HWY_ATTR {
    const Vec v = hn::Mul(silu(hn::LoadU(floats, g)), hn::LoadU(floats, u));
    hn::StoreU(element == Element::kBf16 ? round_bf16(floats, v) : v, floats, to);
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    at(gate + i, up + i, out + i);
  }
  if (const std::size_t left = count - i; left > 0) {
    float of_gate[kLanes] = {}, of_up[kLanes] = {};
    std::copy_n(gate + i, left, of_gate);
    std::copy_n(up + i, left, of_up);
    at(of_gate, of_up, of_gate);
    std::copy_n(of_gate, left, out + i);
  }
}

// Computes activate() of a part of a row.
inline void activate_run(const Activated& of, Element element, float* out) {
  const std::size_t count = of.x.size();
  const float* const x = of.x.data();
  const float* const factor = of.factor.empty() ? nullptr : of.factor.data();
  const auto each = [&](const auto& function) HWY_ATTR {
    const auto run = [&](auto d, std::size_t from) HWY_ATTR {
      for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
        auto v = function(d, hn::LoadU(d, x + from));
        v = factor == nullptr ? v : hn::Mul(v, hn::LoadU(d, factor + from));
        hn::StoreU(element == Element::kBf16 ? round_bf16(d, v) : v, d, out + from);
      }
      return from;
    };
    run(Lane{}, run(Floats{}, 0));
  };
  switch (of.activation) {
    case Activation::kGelu:
      return each([](auto d, auto v) HWY_ATTR { return gelu(d, v); });
    case Activation::kGeluTanh:
      return each([](auto d, auto v) HWY_ATTR { return gelu_tanh(d, v); });
    case Activation::kRelu:
      return each([](auto d, auto v) HWY_ATTR { return hn::Max(v, hn::Zero(d)); });
    case Activation::kSilu:
      break;
  }
  if (factor != nullptr) {
    swiglu_run(x, factor, count, element, out);
    return;
  }
  each([](auto d, auto v) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    return hn::Div(v, hn::Add(one, exp(d, hn::Neg(v))));
  });
}

// Returns the values of a run, padded with zeros to whole blocks of the matrix: x in place if
// possible, else values in `room`, of which those that are not x itself are rounded to `element`.
HWY_INLINE const float* make_run(const BlockInputs& given, const RowRun& run, Element element,
                                 float* room) {
  const std::int64_t at = run.row * given.stride + run.begin - given.begin;
  const float* const x = given.x + at;
  const std::int64_t padded = round_up<std::int64_t>(run.count, PackedMatrix::kInputBlock);
  if (!given.made() && padded == run.count) {
    return x;
  }
  const auto count = static_cast<std::size_t>(run.count);
  if (given.up != nullptr) {
    activate_run({{x, count}, {given.up + at, count}, given.activation}, element, room);
  } else if (given.made()) {
    norm_run(x, given.norm.weight.subspan(static_cast<std::size_t>(run.begin), count),
             run.norm_scale, element, room);
  } else {
    std::copy_n(x, count, room);
  }
  std::fill(room + run.count, room + padded, 0.0f);
  return room;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
