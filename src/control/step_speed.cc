#include "control/step_speed.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr double kUsPerS = 1e6;

}  // namespace

void StepSpeed::step_done(const StepWork& work, const StepPrecision& precision, TimeNs took_ns) {
  correction_.step_done(precision.layers, predict_us(cost_, work, precision),
                        static_cast<double>(took_ns) / kNsPerUs);
}

double StepSpeed::step_s(const StepPrecision& precision, const Batch& batch) const {
  const double prompt = batch.prompt_tokens;
  const double sequences = batch.decoding + (prompt > 0 ? 1 : 0);
  const StepWork work{
      .tokens = batch.decoding + prompt,
      .sequences = sequences,
      .logit_rows = sequences,
      .context_tokens = batch.context_tokens + batch.decoding + prompt * (prompt + 1) / 2,
      .kv_tokens = batch.context_tokens + batch.decoding + prompt};
  return predict_us(cost_, work, precision) * correction_.factor(precision.layers) / kUsPerS;
}

double StepSpeed::prefill_s(const StepPrecision& precision, double prompt_tokens,
                            const Batch& running) const {
  const double room = std::max(1.0, most_step_tokens_ - running.decoding);
  const double full_steps = std::floor(prompt_tokens / room);
  const double rest = prompt_tokens - full_steps * room;
  const auto of = [&](double tokens) {
    return step_s(precision, {running.decoding, running.context_tokens, tokens});
  };
  return (full_steps > 0 ? full_steps * of(room) : 0) + (rest > 0 ? of(rest) : 0);
}

double StepSpeed::copy_bytes_per_s() const {
  constexpr double kGuess = 5e8;
  return cost_.copy_bytes_per_us > 0 ? cost_.copy_bytes_per_us * kUsPerS : kGuess;
}

int StepSpeed::prompt_tokens_within(const StepPrecision& precision, double step_s_wanted,
                                    const Batch& running) const {
  const auto of = [&](double tokens) {
    return step_s(precision, {running.decoding, running.context_tokens, tokens});
  };
  const double within_s = std::max(step_s_wanted, 2 * of(0));
  int fits = 0;  // more prompt tokens never take less time
  for (int beyond = most_step_tokens_ + 1; beyond - fits > 1;) {
    const int middle = fits + (beyond - fits) / 2;
    (of(middle) <= within_s ? fits : beyond) = middle;
  }
  return fits;
}

}  // namespace protean
