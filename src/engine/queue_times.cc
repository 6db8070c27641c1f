#include "engine/queue_times.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr int kLeastPromptTokens = 16;  // of a step: prompts get on although steps are too long

PromptWork prompts_of(const Backlog& backlog) {
  return {static_cast<double>(backlog.prompts), static_cast<double>(backlog.tokens),
          backlog.prompt_context_tokens};
}

Batch batch_of(const Backlog& backlog, const PromptWork& prompts) {
  return {static_cast<double>(backlog.decoding), static_cast<double>(backlog.context_tokens),
          prompts};
}

TimeNs ns_of(double seconds) {
  return std::llround(seconds * static_cast<double>(kNsPerS));
}

}  // namespace

TimeNs QueueTimes::prefill_ns(const PromptWork& prompt) const {
  return ns_of(speed_.prefill_s(precision_, {.prompt = prompt}));
}

int QueueTimes::prompt_tokens_within(double step_s, const Backlog& running) const {
  return std::max(
      kLeastPromptTokens,
      speed_.prompt_tokens_within(precision_, step_s, batch_of(running, prompts_of(running))));
}

TimeNs QueueTimes::first_token_ns(const Backlog& before, const PromptWork& prompt) const {
  const auto prefill_s = [&](const PromptWork& prompts) {
    return speed_.prefill_s(precision_, batch_of(before, prompts));
  };
  const double computing_s = prefill_s(prompts_of(before) + prompt);
  if (before.without_place == 0 || before.running == 0) {
    return ns_of(computing_s);
  }
  // Assumes that answers end evenly: one each time that the running sequences together have drawn
  // as many tokens as one of them lacks.
  const auto of_one = [](std::int64_t tokens, int sequences) {
    return sequences > 0 ? static_cast<int>(tokens / sequences) : 0;
  };
  const int drawn = of_one(before.drawn_tokens, before.decoding);
  const int most = drawn + of_one(before.most_left_tokens, before.running);
  const double left = lengths_.expected_left(drawn, most);
  const double step_s =
      speed_.step_s(precision_, {.decoding = static_cast<double>(before.running),
                                 .context_tokens = static_cast<double>(before.context_tokens)});
  const double placed_s = left * step_s / before.running * before.without_place;
  return ns_of(std::max(computing_s, placed_s + prefill_s(prompt)));
}

}  // namespace protean
