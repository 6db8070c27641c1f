#pragma once

#include <cstdint>

#include "base/units.h"
#include "scheduler/scheduler.h"

namespace protean {

// How long it takes to a first token, learned from steps and answers as they end: a step's time as
// a fixed part and a part per token, fitted with exponential forgetting, and how long a sequence
// keeps its place. Knows nothing of hardware, costs O(1), and is an optimist: what it has not seen
// it predicts as 0. Pure.
class WaitEstimate {
 public:
  explicit WaitEstimate(int max_step_tokens) : max_step_tokens_(max_step_tokens) {}

  void step_done(int tokens, TimeNs took_ns);
  void answer_done(TimeNs residence_ns);

  // To compute so many prompt tokens beside `decoding` sequences.
  TimeNs prefill_ns(std::int64_t tokens, int decoding) const;

  TimeNs token_ns() const;  // of one of many: of a full step

  // How many prompt tokens a step takes in this time beside so many sequences that decode, or, if
  // that is more, in as much time as it takes without any. Here a pessimist.
  int prompt_tokens_within(TimeNs step_ns, int decoding) const;

  // Of a newcomer with so many tokens to compute, behind this backlog.
  TimeNs first_token_ns(const Backlog& before, std::int64_t tokens) const;

 private:
  const int max_step_tokens_;
  // Decayed sums over steps: of 1, tokens, times, tokens squared, tokens times times.
  double weight_ = 0;
  double tokens_ = 0;
  double took_ns_ = 0;
  double tokens_squared_ = 0;
  double tokens_took_ = 0;
  double least_token_ns_ = 0;  // of a whole step; more than a token's own part
  double step_ns_ = 0;         // fitted
  double token_ns_ = 0;        // fitted
  double residence_ns_ = 0;    // mean
};

}  // namespace protean
