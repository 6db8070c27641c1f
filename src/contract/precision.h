#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace protean {

// bf16, w8, w4 and w3 are what a served layer can be; f32 is the oracle that tests compare with.
enum class Precision : std::uint8_t { kF32, kBf16, kW8, kW4, kW3 };
inline constexpr std::array kPrecisions = {Precision::kF32, Precision::kBf16, Precision::kW8,
                                           Precision::kW4, Precision::kW3};

std::string_view to_string(Precision precision);
Result<Precision> parse_precision(std::string_view text);

}  // namespace protean
