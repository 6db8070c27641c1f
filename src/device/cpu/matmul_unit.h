#pragma once

#include <cstdint>

namespace protean::cpu {

// What multiplies: vectors (f32 or whole numbers), AVX-512's dot instructions (dot.h) or AMX
// (tiles.h). The best there is unless a test or a benchmark wants another; what is asked for must
// be there.
enum class MatmulUnit : std::uint8_t { kBest, kVector, kDot, kAmx, kEmulatedAmx };

constexpr bool has_tiles(MatmulUnit unit) {
  return unit == MatmulUnit::kAmx || unit == MatmulUnit::kEmulatedAmx;
}

}  // namespace protean::cpu
