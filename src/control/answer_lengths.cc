#include "control/answer_lengths.h"

#include <algorithm>
#include <cmath>

#include "control/policy_constants.h"

namespace protean {
namespace {

constexpr double kMemory = 1 - 1 / kAnswersRemembered;

}  // namespace

std::size_t AnswerLengths::bin_of(int tokens) {
  const double octaves = std::log2(std::clamp(tokens, 1, kMostTokens - 1));
  return static_cast<std::size_t>(octaves * kPerOctave);
}

void AnswerLengths::done(int prompt_tokens, int tokens) {
  const std::size_t bin = bin_of(tokens);
  const double answer = tokens;
  prompt_tokens_ = kMemory * prompt_tokens_ + answer * prompt_tokens;
  squares_ = kMemory * squares_ + answer * answer;
  for (std::size_t i = 0; i < kBins; ++i) {
    weight_[i] = kMemory * weight_[i] + (i <= bin ? 1 : 0);
    tokens_[i] = kMemory * tokens_[i] + (i <= bin ? tokens : 0);
  }
}

double AnswerLengths::expected_left(int drawn, int most) const {
  const int room = std::max(most - drawn, 0);
  const std::size_t first = drawn < 1 ? 0 : std::min(bin_of(drawn) + 1, kBins);
  const std::size_t beyond = std::clamp(bin_of(most), first, kBins);
  const double within = weight_[first] - weight_[beyond];
  const double left = tokens_[first] - tokens_[beyond] - within * drawn + weight_[beyond] * room;
  const double prior = std::min(std::max(drawn, kFirstAnswerTokens - drawn), room);
  return std::clamp((left + prior) / (weight_[first] + 1), 0.0, static_cast<double>(room));
}

double AnswerLengths::running_prompt_tokens(double mean_prompt) const {
  return (prompt_tokens_ + kFirstAnswerTokens * mean_prompt) / (tokens_[0] + kFirstAnswerTokens);
}

double AnswerLengths::running_drawn_tokens() const {
  return (squares_ + kFirstAnswerTokens * kFirstAnswerTokens) / 2 /
         (tokens_[0] + kFirstAnswerTokens);
}

}  // namespace protean
