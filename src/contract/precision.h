#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace protean {

// How a weight is stored, from the most bits to the fewest. The values are those on disk. kS24 is
// bf16 with two of four consecutive inputs of an output, and their places.
enum class WeightStorage : std::uint8_t { kF32, kBf16, kS24, kW8, kW4, kW3 };

// What each way of storing takes. A new one is a row here, its precisions in kPrecisions and its
// kernel format (model/weights.cc).
struct WeightStorageTraits {
  double bits = 0;               // bits of one weight, without its group's scale and offset
  std::int64_t group_bytes = 0;  // f16 scale and offset of a group; 0: weights have no groups
};
inline constexpr std::array<WeightStorageTraits, 6> kWeightStorages = {{
    {.bits = 32},                   // kF32
    {.bits = 16},                   // kBf16
    {.bits = 9},                    // kS24: two bf16 and their 2-bit places of four weights
    {.bits = 8, .group_bytes = 2},  // kW8: symmetric, no offset
    {.bits = 4, .group_bytes = 4},  // kW4
    {.bits = 3, .group_bytes = 4},  // kW3
}};

constexpr const WeightStorageTraits& traits_of(WeightStorage storage) {
  return kWeightStorages[static_cast<std::size_t>(storage)];
}

// How weights are stored, and how wide the activations are that they are multiplied with. "w4a8" is
// 4-bit weights with 8-bit activations; "s24" is bf16 with 2:4 sparsity; 7-bit activations are for
// processors without an instruction for four products of 8 bits. f32 is the oracle that tests
// compare with.
struct Precision {
  WeightStorage weights = WeightStorage::kBf16;
  int activation_bits = 16;

  static const Precision kF32, kBf16, kS24, kW8, kW8A8, kW8A7, kW4, kW4A8, kW3;

  constexpr bool quantised() const { return traits_of(weights).group_bytes > 0; }
  constexpr bool integer_activations() const { return activation_bits < 16; }

  friend constexpr bool operator==(const Precision&, const Precision&) = default;
  // Orders from the highest precision to the lowest.
  friend constexpr std::strong_ordering operator<=>(const Precision& a, const Precision& b) {
    return a.weights != b.weights ? a.weights <=> b.weights
                                  : b.activation_bits <=> a.activation_bits;
  }
};

inline constexpr Precision Precision::kF32{WeightStorage::kF32, 32};
inline constexpr Precision Precision::kBf16{WeightStorage::kBf16, 16};
inline constexpr Precision Precision::kS24{WeightStorage::kS24, 16};
inline constexpr Precision Precision::kW8{WeightStorage::kW8, 16};
inline constexpr Precision Precision::kW8A8{WeightStorage::kW8, 8};
inline constexpr Precision Precision::kW8A7{WeightStorage::kW8, 7};
inline constexpr Precision Precision::kW4{WeightStorage::kW4, 16};
inline constexpr Precision Precision::kW4A8{WeightStorage::kW4, 8};
inline constexpr Precision Precision::kW3{WeightStorage::kW3, 16};

// The precisions that a component can have, from the highest to the lowest.
inline constexpr std::array kPrecisions = {Precision::kF32, Precision::kBf16, Precision::kS24,
                                           Precision::kW8,  Precision::kW8A8, Precision::kW8A7,
                                           Precision::kW4,  Precision::kW4A8, Precision::kW3};

// The place of a precision in kPrecisions, for arrays with an element for each.
constexpr std::size_t index_of(Precision precision) {
  return static_cast<std::size_t>(std::find(kPrecisions.begin(), kPrecisions.end(), precision) -
                                  kPrecisions.begin());
}

constexpr double weight_bits(Precision precision) {
  return traits_of(precision.weights).bits;
}

// Weights multiplied with activations that are not quantised: "w8" for "w8a7".
constexpr Precision weight_only(WeightStorage weights) {
  return {weights, weights == WeightStorage::kF32 ? 32 : 16};
}
constexpr Precision weight_only(Precision precision) {
  return weight_only(precision.weights);
}

constexpr bool is_lower(Precision a, Precision b) {
  return b < a;
}

std::string_view to_string(Precision precision);
Result<Precision> parse_precision(std::string_view text);

}  // namespace protean
