#include "trace/text.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

namespace protean {
namespace {

// Removes an integer and the character after it from the front of `text`.
std::optional<std::int64_t> take(std::string_view& text, char terminator) {
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto used = static_cast<std::size_t>(end - text.data());
  if (failed != std::errc() || value < 0 || used == text.size() || *end != terminator) {
    return std::nullopt;
  }
  text.remove_prefix(used + 1);
  return value;
}

// Removes seconds with an optional fraction from the front of `text`; returns them in nanoseconds.
std::optional<TimeNs> take_seconds(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() &&
         (text[length] == '.' || (text[length] >= '0' && text[length] <= '9'))) {
    ++length;
  }
  const auto seconds = parse_number(text.substr(0, length));
  text.remove_prefix(length);
  if (!seconds || *seconds >= 61) {
    return std::nullopt;
  }
  return seconds_to_ns(*seconds);
}

// Returns the offset from UTC that `text` states: empty, "Z" or like "+00:00".
std::optional<TimeNs> zone_offset(std::string_view text) {
  if (text.empty() || text == "Z") {
    return 0;
  }
  const bool digits = text.size() == 6 && text[3] == ':' &&
                      std::all_of(text.begin() + 1, text.end(),
                                  [](char c) { return c == ':' || (c >= '0' && c <= '9'); });
  if (!digits || (text[0] != '+' && text[0] != '-')) {
    return std::nullopt;
  }
  const std::int64_t hours = (text[1] - '0') * 10 + (text[2] - '0');
  const std::int64_t minutes = (text[4] - '0') * 10 + (text[5] - '0');
  return (text[0] == '-' ? -1 : 1) * (hours * 60 + minutes) * 60 * kNsPerS;
}

}  // namespace

Status for_each_line(std::string_view text, std::string_view name, const LineReader& row) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) {
      line.remove_prefix(3);
    }
    if (trimmed(line).empty()) {
      continue;
    }
    if (Status read = row(line, {name, number}); !read.ok()) {
      return read;
    }
  }
  return {};
}

std::vector<std::string_view> split_csv(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) {
      return fields;
    }
    line.remove_prefix(comma + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string quoted_for_error(std::string_view text) {
  static constexpr std::size_t kLongest = 60;
  std::string quoted = "'";
  for (const char c : text.substr(0, kLongest)) {
    quoted += c >= ' ' && c <= '~' ? c : '?';
  }
  return quoted + (text.size() > kLongest ? "...'" : "'");
}

Result<std::int64_t> parse_tokens(std::string_view text, const TracePlace& place) {
  const auto value = parse_number(text);
  if (!value || *value < 0 || *value > static_cast<double>(kMaxTraceTokens) ||
      *value != std::floor(*value)) {
    return trace_error(place, "{} is not a number of tokens: a whole number from 0 to {}",
                       quoted_for_error(text), kMaxTraceTokens);
  }
  return static_cast<std::int64_t>(*value);
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<TimeNs> parse_timestamp(std::string_view text) {
  const auto year = take(text, '-');
  const auto month = take(text, '-');
  const bool iso = text.find('T') != std::string_view::npos;
  const auto day = take(text, iso ? 'T' : ' ');
  const auto hour = take(text, ':');
  const auto minute = take(text, ':');
  if (!year || !month || !day || !hour || !minute || *year > 9999 || *month > 12 || *day > 31 ||
      *hour > 23 || *minute > 59) {
    return std::nullopt;
  }
  const auto second_ns = take_seconds(text);
  const auto offset_ns = zone_offset(text);
  const auto date = std::chrono::year_month_day(std::chrono::year(static_cast<int>(*year)),
                                                std::chrono::month(static_cast<unsigned>(*month)),
                                                std::chrono::day(static_cast<unsigned>(*day)));
  // 64 bits hold the nanoseconds of these years only.
  if (!second_ns || !offset_ns || !date.ok() || *year < 1700 || *year > 2250) {
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return ((days * 24 + *hour) * 60 + *minute) * 60 * kNsPerS + *second_ns - *offset_ns;
}

TimeNs seconds_to_ns(double seconds) {
  return static_cast<TimeNs>(std::llround(seconds * static_cast<double>(kNsPerS)));
}

}  // namespace protean
