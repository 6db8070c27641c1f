#include "base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace protean {

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < kKiB) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kNames[unit]);
}

namespace {

constexpr std::int64_t kMostBytes = 1024 * 1024 * kGiB;

// Returns the multiplier of "", "b", "k", "kib", "KB", ...; 0 for any other text.
double unit_factor(std::string_view unit) {
  static constexpr std::string_view kPrefixes = "kmgt";
  if (unit.empty() || unit == "b") {
    return 1.0;
  }
  const auto power = kPrefixes.find(unit.front());
  const auto rest = unit.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) {
    return 0.0;
  }
  return std::pow(1024.0, static_cast<double>(power + 1));
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    if (c != ' ') {
      lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  double number = 0;
  const auto [end, failed] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  const double factor = unit_factor(std::string_view(end, lower.data() + lower.size()));
  const double bytes = number * factor;
  if (failed != std::errc() || factor == 0.0 || !(bytes >= 0.0) ||
      bytes > static_cast<double>(kMostBytes)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "'{}' is not a size: write a number with an optional K, M, G or T, like "
                      "4GiB, up to 1024T",
                      text);
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace protean
