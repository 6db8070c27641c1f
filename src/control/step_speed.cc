#include "control/step_speed.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr double kUsPerS = 1e6;

}  // namespace

void StepSpeed::step_done(const StepWork& work, const StepPrecision& precision,
                          const StepTimes& took) {
  const double path_us = predict_us(path_, work, precision);
  const double stage_us = predict_us(cost_, work, precision);
  const auto start_us = static_cast<double>(took.since_start_ns) / kNsPerUs;
  const auto last_us = static_cast<double>(took.since_last_ns) / kNsPerUs;
  if (start_us * stage_us < last_us * path_us) {
    correction_.step_done(precision.layers, path_us, start_us);
  } else {
    correction_.step_done(precision.layers, stage_us, last_us);
  }
}

double StepSpeed::step_s(const StepPrecision& precision, const Batch& batch) const {
  return corrected_s(cost_, precision, batch);
}

double StepSpeed::corrected_s(const StepCost& cost, const StepPrecision& precision,
                              const Batch& batch) const {
  const double prompt = batch.prompt_tokens;
  const double sequences = batch.decoding + (prompt > 0 ? 1 : 0);
  const StepWork work{
      .tokens = batch.decoding + prompt,
      .sequences = sequences,
      .logit_rows = sequences,
      .context_tokens = batch.context_tokens + batch.decoding + prompt * (prompt + 1) / 2,
      .kv_tokens = batch.context_tokens + batch.decoding + prompt};
  return predict_us(cost, work, precision) * correction_.factor(precision.layers) / kUsPerS;
}

double StepSpeed::prefill_s(const StepPrecision& precision, double prompt_tokens,
                            const Batch& running) const {
  const double room = std::max(1.0, most_step_tokens_ - running.decoding);
  const double full_steps = std::floor(prompt_tokens / room);
  const double rest = prompt_tokens - full_steps * room;
  const auto of = [&](double tokens) {
    return step_s(precision, {running.decoding, running.context_tokens, tokens});
  };
  // A pipeline divides a prompt that is alone among its stages, which the last part then passes.
  const auto passing = [&](double tokens) {
    const double all = corrected_s(path_, precision, {0, 0, tokens});
    const double stage = corrected_s(cost_, precision, {0, 0, tokens});
    return stage > 0 ? (all - stage) * stage / all : 0;
  };
  return (full_steps > 0 ? full_steps * of(room) : 0) + (rest > 0 ? of(rest) : 0) +
         (prompt_tokens > 0 ? passing(rest > 0 ? rest : room) : 0);
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
