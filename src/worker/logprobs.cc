#include "worker/logprobs.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "device/cpu/softmax.h"

namespace protean {
namespace {

// Log-softmax of one row. Logits equal to the largest are handled apart, since infinity minus
// infinity is NaN.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) : top_(most_likely(logits).logit) {
    log_sum_ = std::log(cpu::SoftmaxWeights{.top = top_}.total(logits));
  }

  float operator()(float logit) const {
    if (!(logit > kNeverLogit)) {
      return kNeverLogit;
    }
    const double below_top = logit == top_ ? 0.0 : static_cast<double>(logit) - top_;
    return static_cast<float>(below_top - log_sum_);
  }

 private:
  float top_;
  double log_sum_ = 0.0;
};

int rank_of(std::span<const float> logits, TokenId token) {
  const float logit = logits[static_cast<std::size_t>(token)];
  const auto [lower, higher] = std::pair(logits.first(static_cast<std::size_t>(token)),
                                         logits.subspan(static_cast<std::size_t>(token) + 1));
  if (std::isnan(logit)) {
    return static_cast<int>(logits.size());
  }
  return 1 + static_cast<int>(std::count_if(lower.begin(), lower.end(),
                                            [logit](float other) { return other >= logit; }) +
                              std::count_if(higher.begin(), higher.end(),
                                            [logit](float other) { return other > logit; }));
}

}  // namespace

TokenLogprobs token_logprobs(std::span<const float> logits, const LogprobsAsked& asked,
                             std::vector<Candidate>& room) {
  check(asked.token >= 0 && static_cast<std::size_t>(asked.token) < logits.size(),
        "logprobs are asked of a token of the vocabulary");
  const LogSoftmax log_softmax(logits);
  TokenLogprobs told{.logprob = log_softmax(logits[static_cast<std::size_t>(asked.token)]),
                     .rank = rank_of(logits, asked.token)};
  if (asked.top > 0) {
    select_top_k(logits, std::min(static_cast<std::size_t>(asked.top), logits.size()), room);
    std::sort(room.begin(), room.end(), likelier);
    told.top.reserve(room.size());
    for (const Candidate& candidate : room) {
      told.top.push_back({candidate.id, log_softmax(candidate.logit)});
    }
  }
  if (asked.whole_row) {
    told.row.resize(logits.size());
    std::transform(logits.begin(), logits.end(), told.row.begin(), log_softmax);
  }
  return told;
}

}  // namespace protean
