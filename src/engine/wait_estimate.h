#pragma once

#include <cstdint>

#include "base/units.h"
#include "scheduler/scheduler.h"

namespace protean {

// Predicts the time to a first token from past steps and answers: a step's time as a constant plus
// a time for each token, fitted with exponential forgetting, and the time that a sequence runs.
// Knows nothing of hardware; costs O(1). Predicts 0 for what it has not observed. Pure.
class WaitEstimate {
 public:
  explicit WaitEstimate(int max_step_tokens) : max_step_tokens_(max_step_tokens) {}

  void step_done(int tokens, TimeNs took_ns);
  void answer_done(TimeNs residence_ns);

  // Predicts the time to compute so many prompt tokens while `decoding` sequences decode.
  TimeNs prefill_ns(std::int64_t tokens, int decoding) const;

  TimeNs token_ns() const;  // of one token in a full step

  // Returns how many prompt tokens a step can take within `step_ns` while `decoding` sequences
  // decode. If the decodes alone take more than half of that, prompts get as much time as the
  // decodes. Assumes the worst about what it has not observed.
  int prompt_tokens_within(TimeNs step_ns, int decoding) const;

  // Predicts the time to the first token of a request with so many tokens to compute, after
  // `before`.
  TimeNs first_token_ns(const Backlog& before, std::int64_t tokens) const;

 private:
  const int max_step_tokens_;
  // Decayed sums over steps: of 1, tokens, time, tokens squared, tokens times time.
  double weight_ = 0;
  double tokens_ = 0;
  double took_ns_ = 0;
  double tokens_squared_ = 0;
  double tokens_took_ = 0;
  double least_token_ns_ = 0;  // a whole step's time by its tokens, the least
  double step_ns_ = 0;         // fitted
  double token_ns_ = 0;        // fitted
  double residence_ns_ = 0;    // mean
};

}  // namespace protean
