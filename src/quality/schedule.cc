#include "quality/schedule.h"

#include <charconv>

namespace protean {
namespace {

constexpr int kMostTokens = 1 << 24;

Result<PrecisionSpan> parse_span(std::string_view text, std::string_view whole) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"{}\" in the precision schedule \"{}\" has no length: write it as "
                      "PRECISION:TOKENS, such as bf16:512",
                      text, whole);
  }
  const auto precision = parse_precision(text.substr(0, colon));
  if (!precision.ok()) {
    return precision.error();
  }
  const std::string_view digits = text.substr(colon + 1);
  int tokens = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), tokens);
  if (error != std::errc{} || end != digits.data() + digits.size() || tokens < 1 ||
      tokens > kMostTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"{}\" in the precision schedule \"{}\" is no number of tokens from 1 to {}",
                      digits, whole, kMostTokens);
  }
  return PrecisionSpan{*precision, tokens};
}

}  // namespace

Result<PrecisionSchedule> parse_schedule(std::string_view text) {
  PrecisionSchedule schedule;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const auto span = parse_span(text.substr(begin, comma - begin), text);
    if (!span.ok()) {
      return span.error();
    }
    schedule.push_back(*span);
    begin = comma + 1;
  }
  return schedule;
}

std::string to_string(const PrecisionSchedule& schedule) {
  std::string text;
  for (const PrecisionSpan& span : schedule) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", to_string(span.precision), span.tokens);
  }
  return text;
}

}  // namespace protean
