// Vectors of bf16, f32 and int8 rows, and elementary functions, for all vectorised kernels.
// Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_LANES_INL_H_
#undef PROTEAN_DEVICE_CPU_LANES_INL_H_
#else
#define PROTEAN_DEVICE_CPU_LANES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Kernels assume at most 16 lanes.
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Vec = hn::Vec<Floats>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats{}));
constexpr int kTwoVecs = 2 * kLanes;

constexpr float kLog2E = 1.44269504f;
// Adding this to a float below 2^22 rounds it: the lowest bits of the sum are the nearest integer,
// ties to even, and subtracting the constant gives that integer as a float.
constexpr float kNoFraction = 12582912.0f;

// kTwoVecs consecutive elements of a row. A 32-bit load of bf16 gives two elements in each lane,
// and one operation for each makes them f32: so for bf16, `a` has the even elements and `b` the odd
// ones. For f32 and int8, `a` has the first kLanes elements and `b` the rest. Sums keep this order
// until they are stored.
struct TwoVecs {
  Vec a;
  Vec b;
};

HWY_INLINE TwoVecs widen(hn::Vec<Words> pairs) {
  const Words words;
  const Floats floats;
  return {hn::BitCast(floats, hn::ShiftLeft<16>(pairs)),
          hn::BitCast(floats, hn::And(pairs, hn::Set(words, 0xffff0000U)))};
}

HWY_INLINE TwoVecs load_two_vecs(const float* from) {
  const Floats floats;
  return {hn::LoadU(floats, from), hn::LoadU(floats, from + kLanes)};
}
HWY_INLINE TwoVecs load_two_vecs(const std::uint16_t* from) {
  return widen(hn::LoadU(Words{}, reinterpret_cast<const std::uint32_t*>(from)));
}

// Loads the first `count` elements and fills the rest with zeros. Reads no memory beyond them.
// `count` is a multiple of 8 and less than kTwoVecs, so it is 0 if kTwoVecs is 8.
HWY_INLINE TwoVecs load_part(const float* from, int count) {
  const Floats floats;
  if (count < kLanes) {
    return {hn::MaskedLoad(hn::FirstN(floats, static_cast<std::size_t>(count)), floats, from),
            hn::Zero(floats)};
  }
  const auto rest = hn::FirstN(floats, static_cast<std::size_t>(count - kLanes));
  return {hn::LoadU(floats, from), hn::MaskedLoad(rest, floats, from + kLanes)};
}
HWY_INLINE TwoVecs load_part(const std::uint16_t* from, int count) {
  const Words words;
  const auto first = hn::FirstN(words, static_cast<std::size_t>(count / 2));
  return widen(hn::MaskedLoad(first, words, reinterpret_cast<const std::uint32_t*>(from)));
}

HWY_INLINE TwoVecs load_two_vecs(const std::int8_t* from) {
  const Floats floats;
  const hn::RebindToSigned<Floats> ints;
  const hn::Rebind<std::int8_t, Floats> bytes;
  return {hn::ConvertTo(floats, hn::PromoteTo(ints, hn::LoadU(bytes, from))),
          hn::ConvertTo(floats, hn::PromoteTo(ints, hn::LoadU(bytes, from + kLanes)))};
}
HWY_INLINE TwoVecs load_part(const std::int8_t* from, int count) {
  alignas(64) std::int8_t padded[kTwoVecs] = {};
  std::copy_n(from, count, padded);
  return load_two_vecs(padded);
}

// load_sums() and store_sums() convert between plain order in memory and the order of TwoVecs of
// `Stored` elements.
template <class Stored>
HWY_INLINE TwoVecs load_sums(const float* from) {
  if constexpr (sizeof(Stored) == 2) {
    const Floats floats;
    TwoVecs vecs;
    hn::LoadInterleaved2(floats, from, vecs.a, vecs.b);
    return vecs;
  } else {
    return load_two_vecs(from);
  }
}
template <class Stored>
HWY_INLINE void store_sums(TwoVecs vecs, float* to) {
  const Floats floats;
  if constexpr (sizeof(Stored) == 2) {
    hn::StoreInterleaved2(vecs.a, vecs.b, floats, to);
  } else {
    hn::StoreU(vecs.a, floats, to);
    hn::StoreU(vecs.b, floats, to + kLanes);
  }
}

// Returns the sum of a row's inputs, in an order that depends only on their number.
inline float sum_inputs(const float* x, std::int64_t inputs) {
  const Floats floats;
  Vec sum = hn::Zero(floats);
  std::int64_t i = 0;
  for (; i + kLanes <= inputs; i += kLanes) {
    sum = hn::Add(sum, hn::LoadU(floats, x + i));
  }
  float total = hn::GetLane(hn::SumOfLanes(floats, sum));
  for (; i < inputs; ++i) {
    total += x[i];
  }
  return total;
}

// Rounds every lane like bf16_from() (bf16.h). The result is in the upper half of 32 bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V round_bf16(D floats, V value) {
  const hn::RebindToUnsigned<D> words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1U));
  const auto nearest = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffU)));
  const auto quiet = hn::Or(bits, hn::Set(words, 0x400000U));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(value));
  const auto chosen = hn::IfThenElse(is_nan, quiet, nearest);
  return hn::BitCast(floats, hn::And(chosen, hn::Set(words, 0xffff0000U)));
}

// Returns e^x to a relative error of about 1e-7 for x in [-87, 88]; 0 for smaller and e^88 for
// larger x. A NaN stays a NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D floats, V x) {
  const hn::RebindToSigned<D> ints;
  const auto lowest = hn::Set(floats, -87.0f);
  const auto highest = hn::Set(floats, 88.0f);
  const auto underflows = hn::Lt(x, lowest);
  const auto is_nan = hn::IsNaN(x);
  const auto input = x;
  x = hn::IfThenElse(hn::Or(underflows, is_nan), lowest,
                     hn::IfThenElse(hn::Gt(x, highest), highest, x));
  // x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 is split into two parts, of which the first is short
  // enough that its product with n is exact. Then follows the series of e^r; its next term is below
  // 6e-9.
  const auto n = hn::Round(hn::Mul(x, hn::Set(floats, kLog2E)));
  auto r = hn::NegMulAdd(n, hn::Set(floats, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(floats, -2.12194440e-4f), r);
  auto sum = hn::Set(floats, 1.0f / 5040);
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f / 720));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f / 120));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f / 24));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f / 6));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.5f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(ints, n), hn::Set(ints, 127)));
  const auto result = hn::IfThenZeroElse(underflows, hn::Mul(sum, hn::BitCast(floats, power)));
  return hn::IfThenElse(is_nan, input, result);
}

// Returns tanh(x) to an absolute error of about 2e-7. A NaN stays a NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D floats, V x) {
  const auto one = hn::Set(floats, 1.0f);
  const auto power = exp(floats, hn::Mul(hn::Abs(x), hn::Set(floats, -2.0f)));
  return hn::CopySign(hn::Div(hn::Sub(one, power), hn::Add(one, power)), x);
}

// Returns 2^x for x up to 100, to a relative error of 3e-6, for results that are rounded to bf16.
// For x below -126 the result is at most 2^-126. A NaN stays a NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V rough_exp2(D floats, V x) {
  // x = n + r with an integer n and |r| <= 1/2.
#if HWY_TARGET == HWY_AVX3
  static_assert(hn::MaxLanes(D{}) == 16);
  const V r{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const auto n = hn::Sub(x, r);
#else
  const hn::RebindToSigned<D> ints;
  const auto lowest = hn::Set(floats, -126.0f);
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  const auto whole = hn::Add(x, hn::Set(floats, kNoFraction));
  const auto r = hn::Sub(x, hn::Sub(whole, hn::Set(floats, kNoFraction)));
#endif
  // The minimax polynomial for the relative error.
  auto sum = hn::Set(floats, 0.00957010201f);
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.0559178603f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.240247448f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.693121815f));
  sum = hn::MulAdd(sum, r, hn::Set(floats, 0.999999261f));
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(sum.raw, n.raw)};
#else
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(ints, whole)), hn::Set(ints, 127 << 23));
  return hn::Mul(sum, hn::BitCast(floats, power));
#endif
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
