#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace protean {

// What a served layer can be: bf16; weights of 8, 4 or 3 bits with activations of bf16; or weights
// of 8 or 4 bits with activations of 8, or of 7, which processors without an instruction for four
// products of 8 bits multiply faster. f32 is the oracle that tests compare with.
enum class Precision : std::uint8_t { kF32, kBf16, kW8, kW4, kW3, kW8A8, kW4A8, kW8A7 };
// From the highest to the lowest.
inline constexpr std::array kPrecisions = {Precision::kF32,  Precision::kBf16, Precision::kW8,
                                           Precision::kW8A8, Precision::kW8A7, Precision::kW4,
                                           Precision::kW4A8, Precision::kW3};

// Whether `a` comes after `b` there.
constexpr bool is_lower(Precision a, Precision b) {
  for (const Precision precision : kPrecisions) {
    if (precision == a || precision == b) {
      return precision == b && a != b;
    }
  }
  return false;
}

// What a layer's weights are stored as: with activations of 8 or 7 bits they are the same.
constexpr Precision stored_as(Precision precision) {
  const bool w8 = precision == Precision::kW8A8 || precision == Precision::kW8A7;
  return w8 ? Precision::kW8 : precision == Precision::kW4A8 ? Precision::kW4 : precision;
}

std::string_view to_string(Precision precision);
Result<Precision> parse_precision(std::string_view text);

}  // namespace protean
