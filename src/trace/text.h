#pragma once

// Text functions that the parsers of the trace formats share.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace protean {

inline constexpr std::int64_t kMaxTraceTokens = 1 << 24;  // a longer request is an error
inline constexpr double kMaxTraceSeconds = 1e9;           // 31 years

// A line of a trace, for errors.
struct TracePlace {
  std::string_view name;
  std::int64_t line = 0;  // from 1
};
template <class... Args>
Error trace_error(const TracePlace& place, fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kCorrupt, "{}: line {}: {}", place.name, place.line,
                    fmt::format(format, std::forward<Args>(args)...));
}

// Calls `row` for each line that is not blank, without its line end. Stops at the first error.
using LineReader = std::function<Status(std::string_view line, const TracePlace& place)>;
Status for_each_line(std::string_view text, std::string_view name, const LineReader& row);

std::vector<std::string_view> split_csv(std::string_view line);
std::string_view trimmed(std::string_view text);
// Returns `text` in quotes for a one-line error: long text is cut, unprintable characters become
// "?".
std::string quoted_for_error(std::string_view text);

Result<std::int64_t> parse_tokens(std::string_view text, const TracePlace& place);
// Returns nothing unless the whole of `text` is one finite number.
std::optional<double> parse_number(std::string_view text);
// Returns "2023-11-16 18:17:03.9799600", with an optional time zone, as nanoseconds since 1970.
std::optional<TimeNs> parse_timestamp(std::string_view text);
TimeNs seconds_to_ns(double seconds);

}  // namespace protean
