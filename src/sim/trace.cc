#include "sim/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

namespace protean {
namespace {

// Reads an integer and the character after it off the front of `text`.
std::optional<std::int64_t> take(std::string_view& text, char terminator) {
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto used = static_cast<std::size_t>(end - text.data());
  const bool at_end = used == text.size();
  if (failed != std::errc() || value < 0 ||
      (terminator == '\0' ? !at_end : at_end || *end != terminator)) {
    return std::nullopt;
  }
  text.remove_prefix(used + (at_end ? 0 : 1));
  return value;
}

// "2023-11-16 18:17:03.9799600," off the front, as nanoseconds since 1970.
std::optional<TimeNs> take_timestamp(std::string_view& line) {
  constexpr std::int64_t kLastYear = 2199;  // nanoseconds of 64 bits end in 2262
  const auto year = take(line, '-');
  const auto month = take(line, '-');
  const auto day = take(line, ' ');
  const auto hour = take(line, ':');
  const auto minute = take(line, ':');
  const auto second = take(line, '.');
  const std::size_t digits = line.find(',');
  auto fraction = take(line, ',');
  if (!year || !month || !day || !hour || !minute || !second || !fraction || digits > 9 ||
      *year > kLastYear || *hour > 23 || *minute > 59 || *second > 60) {
    return std::nullopt;
  }
  for (std::size_t i = digits; i < 9; ++i) {
    *fraction *= 10;
  }
  const auto date = std::chrono::year_month_day(std::chrono::year(static_cast<int>(*year)),
                                                std::chrono::month(static_cast<unsigned>(*month)),
                                                std::chrono::day(static_cast<unsigned>(*day)));
  if (!date.ok()) {
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * kNsPerS + *fraction;
}

constexpr std::int64_t kMostTokens = 1'000'000;

// Calls `read` with each line after the first that is not empty. False: it is not such a line.
template <class Read>
Result<std::vector<TraceRequest>> parse_lines(std::string_view csv, std::string_view columns,
                                              Read read) {
  std::vector<TraceRequest> trace;
  TimeNs first_ns = 0;
  for (int number = 1; !csv.empty(); ++number) {
    std::string_view line = csv.substr(0, csv.find('\n'));
    csv.remove_prefix(std::min(csv.size(), line.size() + 1));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (number == 1 || line.empty()) {
      continue;
    }
    TraceRequest request;
    if (!read(line, request)) {
      return make_error(ErrorCode::kCorrupt, "trace line {} is not {}", number, columns);
    }
    first_ns = trace.empty() ? request.at_ns : first_ns;
    request.at_ns -= first_ns;
    trace.push_back(request);
  }
  if (trace.empty()) {
    return make_error(ErrorCode::kCorrupt, "the trace has no requests");
  }
  return trace;
}

bool take_tokens(std::string_view& line, char terminator, int& tokens) {
  const auto count = take(line, terminator);
  tokens = static_cast<int>(std::min(count.value_or(0), kMostTokens));
  return count && *count <= kMostTokens;
}

}  // namespace

Result<std::vector<TraceRequest>> parse_azure_trace(std::string_view csv) {
  return parse_lines(csv, "TIMESTAMP,ContextTokens,GeneratedTokens",
                     [](std::string_view line, TraceRequest& request) {
                       const auto at_ns = take_timestamp(line);
                       request.at_ns = at_ns.value_or(0);
                       return at_ns && take_tokens(line, ',', request.prompt_tokens) &&
                              take_tokens(line, '\0', request.output_tokens);
                     });
}

Result<std::vector<TraceRequest>> parse_burstgpt_trace(std::string_view csv) {
  auto trace = parse_lines(
      csv, "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
      [](std::string_view line, TraceRequest& request) {
        constexpr std::int64_t kLongestS = 1'000'000'000;
        const auto at_s = take(line, ',');
        line.remove_prefix(std::min(line.size(), line.find(',')));
        const bool has_model = line.starts_with(',');
        line.remove_prefix(has_model ? 1 : 0);
        request.at_ns = std::min(at_s.value_or(0), kLongestS) * kNsPerS;
        return at_s && *at_s <= kLongestS && has_model &&
               take_tokens(line, ',', request.prompt_tokens) &&
               take_tokens(line, ',', request.output_tokens) && take(line, ',').has_value();
      });
  if (trace) {
    std::erase_if(*trace, [](const TraceRequest& request) { return request.output_tokens == 0; });
  }
  return trace;
}

std::vector<TraceRequest> repeat_trace(const std::vector<TraceRequest>& trace, std::size_t count) {
  std::vector<TraceRequest> repeated;
  repeated.reserve(count);
  TimeNs offset_ns = 0;
  for (std::size_t i = 0; repeated.size() < count; ++i) {
    if (i == trace.size()) {
      i = 0;
      offset_ns += trace.back().at_ns;
    }
    repeated.push_back(trace[i]);
    repeated.back().at_ns += offset_ns;
  }
  return repeated;
}

}  // namespace protean
