#include "engine/wait_estimate.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr double kStepMemory = 0.98;    // about 50 steps count
constexpr double kAnswerMemory = 0.95;  // about 20 answers count
constexpr double kLeastGrowth = 1.01;   // per step, so that an exceptionally fast step is forgotten

}  // namespace

void WaitEstimate::step_done(int tokens, TimeNs took_ns) {
  if (tokens <= 0 || took_ns < 0) {
    return;
  }
  const double x = tokens;
  const auto y = static_cast<double>(took_ns);
  weight_ = weight_ * kStepMemory + 1;
  tokens_ = tokens_ * kStepMemory + x;
  took_ns_ = took_ns_ * kStepMemory + y;
  tokens_squared_ = tokens_squared_ * kStepMemory + x * x;
  tokens_took_ = tokens_took_ * kStepMemory + x * y;
  least_token_ns_ = weight_ == 1 ? y / x : std::min(least_token_ns_ * kLeastGrowth, y / x);
  // Steps of one size do not tell a token's time from the constant: it is then taken as 0.
  const double spread = weight_ * tokens_squared_ - tokens_ * tokens_;
  const double slope = spread > 1e-6 * tokens_ * tokens_
                           ? (weight_ * tokens_took_ - tokens_ * took_ns_) / spread
                           : 0.0;
  token_ns_ = std::clamp(slope, 0.0, least_token_ns_);
  step_ns_ = std::max(0.0, (took_ns_ - token_ns_ * tokens_) / weight_);
}

void WaitEstimate::answer_done(TimeNs residence_ns) {
  const auto now = static_cast<double>(residence_ns);
  residence_ns_ =
      residence_ns_ == 0 ? now : residence_ns_ * kAnswerMemory + now * (1 - kAnswerMemory);
}

TimeNs WaitEstimate::prefill_ns(std::int64_t tokens, int decoding) const {
  const std::int64_t in_a_step = std::max(1, max_step_tokens_ - decoding);
  const auto steps = static_cast<double>(ceil_div(tokens, in_a_step));
  return std::llround(steps * (step_ns_ + token_ns_ * decoding) +
                      token_ns_ * static_cast<double>(tokens));
}

TimeNs WaitEstimate::token_ns() const {
  return std::llround(step_ns_ / max_step_tokens_ + token_ns_);
}

int WaitEstimate::prompt_tokens_within(TimeNs step_ns, int decoding) const {
  // If a token's time is not known, all of a step's time may be that of its tokens.
  const bool told = token_ns_ > 0;
  const double token_ns = told ? token_ns_ : least_token_ns_;
  const double without_ns = (told ? step_ns_ : 0) + token_ns * decoding;
  const double left_ns = std::max(static_cast<double>(step_ns) - without_ns, without_ns);
  const double most = max_step_tokens_;
  return token_ns * most <= left_ns ? max_step_tokens_ : static_cast<int>(left_ns / token_ns);
}

TimeNs WaitEstimate::first_token_ns(const Backlog& before, std::int64_t tokens) const {
  const TimeNs computing = prefill_ns(before.tokens + tokens, before.decoding);
  if (before.without_place == 0 || before.running == 0) {
    return computing;
  }
  const double leaving_ns = residence_ns_ / before.running;  // time until one sequence ends
  const TimeNs placed_ns = std::llround(leaving_ns * before.without_place);
  return std::max(computing, placed_ns + prefill_ns(tokens, before.decoding));
}

}  // namespace protean
