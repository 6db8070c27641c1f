#pragma once

#include <bit>
#include <cstdint>

namespace protean::cpu {

// Converts from IEEE half precision. Has no branches, so that it vectorises, and computes no
// subnormal f32, which the thread may flush to zero.
inline float float_from_f16(std::uint16_t half) {
  const std::uint32_t magnitude = (half & 0x7FFFU) << 13;
  const std::uint32_t normal = magnitude + (112U << 23);
  const std::uint32_t infinite = magnitude | 0x7F800000U;
  const auto subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + (113U << 23)) - 0x1.0p-14F);
  const std::uint32_t exponent = half & 0x7C00U;
  const std::uint32_t bits = exponent == 0x7C00U ? infinite : (exponent == 0 ? subnormal : normal);
  return std::bit_cast<float>(bits | (half & 0x8000U) << 16);
}

// Rounds to nearest, ties to even. Values beyond the largest finite half become infinity; a NaN
// stays a NaN.
inline std::uint16_t f16_from(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return sign | 0x7E00U;
  }
  if (magnitude >= 0x477FF000U) {  // 65520, halfway between 65504 and the next step
    return sign | 0x7C00U;
  }
  if (magnitude < 0x38800000U) {  // subnormal: the addition rounds to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U);
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13 & 1U);
  return sign | static_cast<std::uint16_t>((rounded - (112U << 23)) >> 13);
}

// Rounds away from zero, but at most to the largest finite half.
inline std::uint16_t f16_not_below(float value) {
  const std::uint16_t nearest = f16_from(value);
  const float magnitude = float_from_f16(nearest & 0x7FFFU);
  const float wanted = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
  const auto half = static_cast<std::uint16_t>(nearest + (magnitude < wanted ? 1 : 0));
  return static_cast<std::uint16_t>(half - ((half & 0x7FFFU) == 0x7C00U ? 1 : 0));
}

}  // namespace protean::cpu
