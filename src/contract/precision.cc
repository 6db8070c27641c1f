#include "contract/precision.h"

#include <utility>

namespace protean {
namespace {

constexpr std::array<std::pair<Precision, std::string_view>, kPrecisions.size()> kPrecisionNames = {
    {
        {Precision::kF32, "f32"},
        {Precision::kBf16, "bf16"},
        {Precision::kW8, "w8"},
        {Precision::kW4, "w4"},
        {Precision::kW3, "w3"},
        {Precision::kW8A8, "w8a8"},
        {Precision::kW8A7, "w8a7"},
        {Precision::kW4A8, "w4a8"},
    }};

}  // namespace

std::string_view to_string(Precision precision) {
  for (const auto& [value, name] : kPrecisionNames) {
    if (value == precision) {
      return name;
    }
  }
  return "?";
}

Result<Precision> parse_precision(std::string_view text) {
  for (const auto& [value, name] : kPrecisionNames) {
    if (name == text) {
      return value;
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "'{}' is not a precision: use f32, bf16, w8, w4, w3, w8a8, w8a7 or w4a8", text);
}

}  // namespace protean
