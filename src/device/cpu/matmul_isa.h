#pragma once

#include <cstdint>

namespace protean::cpu {

// What multiplies: vectors (f32 or integers), the dot instructions of AVX-512 (dot.h) or AMX
// (tiles.h). Tests and benchmarks may choose one other than kBest; it must be available.
enum class MatmulIsa : std::uint8_t { kBest, kVector, kDot, kAmx, kEmulatedAmx };

constexpr bool has_tiles(MatmulIsa isa) {
  return isa == MatmulIsa::kAmx || isa == MatmulIsa::kEmulatedAmx;
}

}  // namespace protean::cpu
