// Dot products of the small numbers in words (dot.h). Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_DOT_INL_H_
#undef PROTEAN_DEVICE_CPU_DOT_INL_H_
#else
#define PROTEAN_DEVICE_CPU_DOT_INL_H_
#endif

#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

using WordVec = hn::Vec<Words>;
using IntVec = hn::Vec<Ints>;

// Adds the products of two bf16 in each lane to `sums`: first the odd product, then the even one,
// each with a fused multiply-add. This is the definition of VDPBF16PS, which also takes denormals
// as zeros.
HWY_INLINE void add_bf16_pairs(Vec& sums, WordVec a, WordVec b) {
#if HWY_TARGET == HWY_AVX3
  auto raw = sums.raw;  // an array element as the operand itself could stay in memory
  asm("vdpbf16ps %2, %1, %0" : "+v"(raw) : "v"(a.raw), "v"(b.raw));
  sums.raw = raw;
#else
  const TwoVecs left = widen(a), right = widen(b);
  sums = hn::MulAdd(left.a, right.a, hn::MulAdd(left.b, right.b, sums));
#endif
}

// signed_field() and unsigned_field() return byte or half `kPlace` of every word.
template <int kBits, int kPlace>
HWY_INLINE IntVec signed_field(WordVec words) {
  const auto high = hn::BitCast(Ints(), hn::ShiftLeft<32 - kBits*(kPlace + 1)>(words));
  return hn::ShiftRight<32 - kBits>(high);
}
template <int kBits, int kPlace>
HWY_INLINE IntVec unsigned_field(WordVec words) {
  const auto field =
      hn::And(hn::ShiftRight<kBits * kPlace>(words), hn::Set(Words(), (1U << kBits) - 1U));
  return hn::BitCast(Ints(), field);
}

// Adds the products of four bytes in each lane to `sums`. The bytes of `a` are unsigned, those of
// `b` signed.
HWY_INLINE void add_byte_fours(IntVec& sums, WordVec a, WordVec b) {
#if HWY_TARGET == HWY_AVX3
  auto raw = sums.raw;  // as in add_bf16_pairs()
  asm("vpdpbusd %2, %1, %0" : "+v"(raw) : "v"(a.raw), "v"(b.raw));
  sums.raw = raw;
#else
  const auto first = hn::Add(hn::Mul(unsigned_field<8, 0>(a), signed_field<8, 0>(b)),
                             hn::Mul(unsigned_field<8, 1>(a), signed_field<8, 1>(b)));
  const auto second = hn::Add(hn::Mul(unsigned_field<8, 2>(a), signed_field<8, 2>(b)),
                              hn::Mul(unsigned_field<8, 3>(a), signed_field<8, 3>(b)));
  sums = hn::Add(sums, hn::Add(first, second));
#endif
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
