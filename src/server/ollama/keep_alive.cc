#include "server/ollama/keep_alive.h"

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

namespace protean {
namespace {

constexpr double kNsPerMinute = 60.0 * static_cast<double>(kNsPerS);
// "m" follows the units that begin with it.
constexpr std::array<std::pair<std::string_view, double>, 8> kUnits = {{
    {"ns", 1},
    {"us", static_cast<double>(kNsPerUs)},
    {"\u00b5s", static_cast<double>(kNsPerUs)},
    {"\u03bcs", static_cast<double>(kNsPerUs)},
    {"ms", static_cast<double>(kNsPerMs)},
    {"s", static_cast<double>(kNsPerS)},
    {"m", kNsPerMinute},
    {"h", 60 * kNsPerMinute},
}};
// A longer time is as good as forever, and leaves room for sums.
constexpr double kLongestNs = static_cast<double>(kForeverNs) / 4;

TimeNs to_time(double ns) {
  return ns < 0 || ns > kLongestNs ? kForeverNs : static_cast<TimeNs>(ns);
}

// Takes a number and its unit from the front of a text.
std::optional<double> take_ns(std::string_view& text) {
  if (text.front() != '.' && (text.front() < '0' || text.front() > '9')) {
    return std::nullopt;  // std::from_chars also reads signs, "inf" and "nan"
  }
  double number = 0;
  const auto [end, failed] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failed != std::errc()) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  for (const auto& [unit, ns] : kUnits) {
    if (text.starts_with(unit)) {
      text.remove_prefix(unit.size());
      return number * ns;
    }
  }
  return std::nullopt;
}

std::optional<TimeNs> read_duration(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  if (text == "0") {
    return 0;
  }
  if (text.empty()) {
    return std::nullopt;
  }
  double sum = 0;
  while (!text.empty()) {
    const auto ns = take_ns(text);
    if (!ns) {
      return std::nullopt;
    }
    sum += *ns;
  }
  return to_time(negative && sum > 0 ? -1 : sum);
}

}  // namespace

std::optional<TimeNs> read_keep_alive(const boost::json::value& value) {
  if (value.is_number()) {
    return to_time(value.to_number<double>() * static_cast<double>(kNsPerS));
  }
  if (value.is_string()) {
    return read_duration(value.get_string());
  }
  return std::nullopt;
}

}  // namespace protean
