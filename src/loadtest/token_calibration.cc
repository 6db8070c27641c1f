#include "loadtest/token_calibration.h"

#include <algorithm>

namespace protean::loadtest {
namespace {

constexpr std::int64_t kFewWords = 8;
constexpr std::int64_t kEnoughWords = 128;
constexpr std::int64_t kTokensPerWord = 5;  // for a tokenizer of single characters
constexpr std::size_t kMostProbes = 6;

}  // namespace

ProbeWords next_probe(std::span<const ProbePrompt> sent, std::int64_t longest_tokens) {
  if (sent.empty()) {
    return {.count = std::clamp<std::int64_t>(longest_tokens / kTokensPerWord / 2, 1, kFewWords)};
  }
  if (sent.size() == 1) {
    return {.count = sent.front().words.count, .times = 2};
  }
  const ProbeWords& last = sent.back().words;
  const std::int64_t seen = last.first + last.count;
  if (seen >= kEnoughWords || sent.size() >= kMostProbes) {
    return {};
  }
  const TokenCalibration found = calibrate(sent);
  const double fitting =
      (static_cast<double>(longest_tokens) - found.overhead_tokens) / found.tokens_per_word;
  const std::int64_t most = kEnoughWords - seen;
  const std::int64_t least = std::min(sent.front().words.count, most);
  return {.first = seen, .count = std::clamp(static_cast<std::int64_t>(fitting), least, most)};
}

TokenCalibration calibrate(std::span<const ProbePrompt> sent) {
  if (sent.empty()) {
    return {};
  }
  const double overhead =
      sent.size() < 2 ? 0 : std::max(0.0, static_cast<double>(2 * sent[0].tokens - sent[1].tokens));
  double words = 0;
  double tokens = 0;
  for (const ProbePrompt& probe : sent) {
    words += static_cast<double>(probe.words.count * probe.words.times);
    tokens += static_cast<double>(probe.tokens) - overhead;
  }
  const double tokens_per_word = tokens / std::max(1.0, words);
  return tokens_per_word > 0 ? TokenCalibration{tokens_per_word, overhead} : TokenCalibration{};
}

}  // namespace protean::loadtest
