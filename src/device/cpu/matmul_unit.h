#pragma once

#include <cstdint>

namespace protean::cpu {

// What multiplies: vectors (f32 or integers), the dot instructions of AVX-512 (dot.h) or AMX
// (tiles.h). Tests and benchmarks may choose a unit other than kBest; it must be available.
enum class MatmulUnit : std::uint8_t { kBest, kVector, kDot, kAmx, kEmulatedAmx };

constexpr bool has_tiles(MatmulUnit unit) {
  return unit == MatmulUnit::kAmx || unit == MatmulUnit::kEmulatedAmx;
}

}  // namespace protean::cpu
