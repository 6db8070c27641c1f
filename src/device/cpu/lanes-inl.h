// What every vectorised kernel needs of a bf16 or f32 row, compiled once per instruction set.

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

// The kernels count on tiles of at most 16 lanes.
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Vec = hn::Vec<Floats>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats{}));
constexpr int kUnit = 2 * kLanes;

constexpr float kLog2E = 1.44269504f;
// Added to so large a number, one below 2^22 loses its fraction: the lowest bits of the sum are the
// nearest whole number, ties to even, and the sum less this is that number.
constexpr float kNoFraction = 12582912.0f;

// kUnit consecutive elements of a row. A 32-bit load of bf16 brings two elements per lane and one
// operation each makes them f32, so for bf16 `a` holds the even elements and `b` the odd ones; for
// f32 and int8 `a` holds the first kLanes and `b` the rest. Sums stay in this order until they are
// stored.
struct Unit {
  Vec a;
  Vec b;
};

HWY_INLINE Unit widen(hn::Vec<Words> pairs) {
  const Words words;
  const Floats floats;
  return {hn::BitCast(floats, hn::ShiftLeft<16>(pairs)),
          hn::BitCast(floats, hn::And(pairs, hn::Set(words, 0xffff0000U)))};
}

HWY_INLINE Unit load_unit(const float* from) {
  const Floats floats;
  return {hn::LoadU(floats, from), hn::LoadU(floats, from + kLanes)};
}
HWY_INLINE Unit load_unit(const std::uint16_t* from) {
  return widen(hn::LoadU(Words{}, reinterpret_cast<const std::uint32_t*>(from)));
}

// The first `count` elements, the rest zero; touches no memory beyond them. count is a multiple of
// 8 and less than kUnit, so where kUnit is 8 there is nothing to load.
HWY_INLINE Unit load_part(const float* from, int count) {
  const Floats floats;
  if (count < kLanes) {
    return {hn::MaskedLoad(hn::FirstN(floats, static_cast<std::size_t>(count)), floats, from),
            hn::Zero(floats)};
  }
  const auto rest = hn::FirstN(floats, static_cast<std::size_t>(count - kLanes));
  return {hn::LoadU(floats, from), hn::MaskedLoad(rest, floats, from + kLanes)};
}
HWY_INLINE Unit load_part(const std::uint16_t* from, int count) {
  const Words words;
  const auto first = hn::FirstN(words, static_cast<std::size_t>(count / 2));
  return widen(hn::MaskedLoad(first, words, reinterpret_cast<const std::uint32_t*>(from)));
}

HWY_INLINE Unit load_unit(const std::int8_t* from) {
  const Floats floats;
  const hn::RebindToSigned<Floats> ints;
  const hn::Rebind<std::int8_t, Floats> bytes;
  return {hn::ConvertTo(floats, hn::PromoteTo(ints, hn::LoadU(bytes, from))),
          hn::ConvertTo(floats, hn::PromoteTo(ints, hn::LoadU(bytes, from + kLanes)))};
}
HWY_INLINE Unit load_part(const std::int8_t* from, int count) {
  alignas(64) std::int8_t padded[kUnit] = {};
  std::copy_n(from, count, padded);
  return load_unit(padded);
}

// Between memory in plain order and a unit in the order that `Stored` rows are read in.
template <class Stored>
HWY_INLINE Unit load_sums(const float* from) {
  if constexpr (sizeof(Stored) == 2) {
    const Floats floats;
    Unit unit;
    hn::LoadInterleaved2(floats, from, unit.a, unit.b);
    return unit;
  } else {
    return load_unit(from);
  }
}
template <class Stored>
HWY_INLINE void store_sums(Unit unit, float* to) {
  const Floats floats;
  if constexpr (sizeof(Stored) == 2) {
    hn::StoreInterleaved2(unit.a, unit.b, floats, to);
  } else {
    hn::StoreU(unit.a, floats, to);
    hn::StoreU(unit.b, floats, to + kLanes);
  }
}

// A row's sum over a group's inputs, in an order that depends on nothing else.
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

// bf16_from (bf16.h) in every lane, still in the upper half of 32 bits.
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

// e^x to about 1e-7 relative over [-87, 88]; 0 below, e^88 above. NaN stays NaN.
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
  // x = n ln 2 + r, |r| <= ln 2 / 2, with ln 2 in two parts, the first of them short enough for
  // n times it to be exact; then the series of e^r, whose next term is below 6e-9.
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

// 2^x for x up to 100, to 3e-6 relative: enough for what is then rounded to bf16. Below -126 it is
// 2^-126 or less. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V rough_exp2(D floats, V x) {
  // x = n + r, |r| <= 1/2, n whole.
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
  // The polynomial whose largest relative error is least.
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
