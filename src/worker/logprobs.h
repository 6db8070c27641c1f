#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/request.h"
#include "worker/candidates.h"

namespace protean {

// How likely a row of raw logits holds `token` to be, beside the `top` likeliest and, if asked, all
// of the row. Sums in double (cpu::SoftmaxWeights). Logits that are not a number have no share.
// `room` is the caller's, to be used again.
struct LogprobsAsked {
  TokenId token = 0;
  int top = 0;
  bool whole_row = false;
};
TokenLogprobs token_logprobs(std::span<const float> logits, const LogprobsAsked& asked,
                             std::vector<Candidate>& room);

}  // namespace protean
