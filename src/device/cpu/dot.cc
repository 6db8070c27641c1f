#include "device/cpu/dot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/dot.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own header after foreach_target.h.
#include "hwy/highway.h"

#if HWY_ARCH_X86_64
#include <cpuid.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

bool is_avx512() {
  return HWY_TARGET == HWY_AVX3;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(is_avx512);

struct Processor {
  bool byte_dot = false;
  bool bf16_dot = false;
  bool amd = false;
};

Processor ask_processor() {
  Processor has;
#if HWY_ARCH_X86_64
  constexpr unsigned kVnni = 1U << 11;     // leaf 7, ECX
  constexpr unsigned kBf16 = 1U << 5;      // leaf 7.1, EAX
  constexpr unsigned kAuth = 0x68747541U;  // "Auth" of "AuthenticAMD", leaf 0, EBX
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) != 0) {
    has.amd = b == kAuth;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    has.byte_dot = (c & kVnni) != 0;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    has.bf16_dot = (a & kBf16) != 0;
  }
#endif
  return has;
}

const Processor& processor() {
  static const Processor has = ask_processor();
  return has;
}

}  // namespace

bool byte_dot_available() {
  return processor().byte_dot && HWY_DYNAMIC_DISPATCH(is_avx512)();
}

bool bf16_dot_pays() {
  return processor().bf16_dot && processor().amd && HWY_DYNAMIC_DISPATCH(is_avx512)();
}

}  // namespace protean::cpu
#endif
