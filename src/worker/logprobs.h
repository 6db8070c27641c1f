#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/request.h"
#include "worker/candidates.h"

namespace protean {

// Returns the log-probability of `token` in a row of raw logits, those of the `top` most likely
// tokens and, if asked, those of the whole row. Sums in double (cpu::SoftmaxWeights). NaN has no
// share. `room` is a buffer that the caller keeps.
struct LogprobsAsked {
  TokenId token = 0;
  int top = 0;
  bool whole_row = false;
};
TokenLogprobs token_logprobs(std::span<const float> logits, const LogprobsAsked& asked,
                             std::vector<Candidate>& room);

}  // namespace protean
