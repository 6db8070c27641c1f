#include "loadtest/token_calibration.h"

#include <algorithm>

namespace protean::loadtest {
namespace {

constexpr std::int64_t kFewWords = 8;
constexpr std::int64_t kManyWords = 128;
constexpr std::int64_t kTokensPerWord = 5;  // for a tokenizer of single characters

}  // namespace

std::int64_t next_probe_words(std::span<const ProbePrompt> sent, std::int64_t longest_tokens) {
  if (sent.empty()) {
    return std::clamp<std::int64_t>(longest_tokens / kTokensPerWord, 1, kFewWords);
  }
  const ProbePrompt& few = sent.front();
  const std::int64_t fitting = static_cast<std::int64_t>(
      static_cast<double>(longest_tokens) * static_cast<double>(few.words) /
      static_cast<double>(std::max<std::int64_t>(1, few.tokens)));
  const std::int64_t many = std::min(kManyWords, fitting);
  return sent.size() == 1 && many > few.words ? many : 0;
}

TokenCalibration calibrate(std::span<const ProbePrompt> sent) {
  const ProbePrompt few = sent.size() < 2 ? ProbePrompt{} : sent.front();
  const ProbePrompt many = sent.empty() ? ProbePrompt{} : sent.back();
  const double slope = static_cast<double>(many.tokens - few.tokens) /
                       static_cast<double>(std::max<std::int64_t>(1, many.words - few.words));
  if (!(slope > 0)) {
    return {};
  }
  return {slope,
          std::max(0.0, static_cast<double>(few.tokens) - slope * static_cast<double>(few.words))};
}

}  // namespace protean::loadtest
