#pragma once

namespace protean {

// What computing prompts takes: totals, which add up over prompts.
struct PromptWork {
  double prompts = 0;         // a part of a prompt is a part of one
  double tokens = 0;          // to compute
  double context_tokens = 0;  // positions that these tokens attend to, summed over tokens

  PromptWork operator+(const PromptWork& other) const {
    return {prompts + other.prompts, tokens + other.tokens, context_tokens + other.context_tokens};
  }
  PromptWork operator*(double share) const {
    return {share * prompts, share * tokens, share * context_tokens};
  }
  // Returns so many tokens of this work.
  PromptWork part(double of_tokens) const {
    return tokens > 0 ? *this * (of_tokens / tokens) : *this;
  }
};

// Returns the work of one prompt of so many tokens after `cached` ones, which KV has.
constexpr PromptWork prompt_work(double tokens, double cached = 0) {
  return {.prompts = 1, .tokens = tokens, .context_tokens = tokens * (cached + (tokens + 1) / 2)};
}

}  // namespace protean
