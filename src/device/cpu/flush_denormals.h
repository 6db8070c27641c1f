#pragma once

#include "hwy/detect_compiler_arch.h"

#if HWY_ARCH_X86_64
#include <immintrin.h>
#endif

namespace protean::cpu {

// Makes the thread take denormals as zeros, like dot instructions and AMX, until it is destroyed.
class FlushDenormals {
 public:
#if HWY_ARCH_X86_64
  FlushDenormals() : before_(_mm_getcsr()) {
    constexpr unsigned kOfResults = 1U << 15, kOfOperands = 1U << 6;
    _mm_setcsr(before_ | kOfResults | kOfOperands);
  }
  ~FlushDenormals() {
    _mm_setcsr(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
#endif
};

}  // namespace protean::cpu
