#include "contract/precision.h"

#include <fmt/ranges.h>

namespace protean {
namespace {

// Names of the precisions, indexed by index_of().
constexpr std::array<std::string_view, kPrecisions.size()> kNames = {
    "f32", "bf16", "s24", "w8", "w8a8", "w8a7", "w4", "w4a8", "w3"};

}  // namespace

std::string_view to_string(Precision precision) {
  const std::size_t at = index_of(precision);
  return at < kNames.size() ? kNames[at] : "?";
}

Result<Precision> parse_precision(std::string_view text) {
  const auto name = std::find(kNames.begin(), kNames.end(), text);
  if (name == kNames.end()) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' is not a precision: use one of {}", text,
                      fmt::join(kNames, ", "));
  }
  return kPrecisions[static_cast<std::size_t>(name - kNames.begin())];
}

}  // namespace protean
