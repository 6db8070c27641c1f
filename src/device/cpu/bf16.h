#pragma once

#include <bit>
#include <cstdint>

namespace protean::cpu {

// Rounds to bf16, the upper half of an f32: to nearest, ties to even. Values beyond the largest
// finite one become infinity. A NaN stays one: it is made quiet, as its upper half alone could be
// infinity.
inline std::uint16_t bf16_from(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

inline float float_from(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

}  // namespace protean::cpu
