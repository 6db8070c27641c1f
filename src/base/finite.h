#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace protean {

// Returns true if no value is NaN or infinite. Compares bits, which compilers vectorise.
inline bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kMagnitude = 0x7FFFFFFF;
  constexpr std::uint32_t kInfinity = 0x7F800000;
  std::uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kMagnitude);
  }
  return largest < kInfinity;
}

}  // namespace protean
