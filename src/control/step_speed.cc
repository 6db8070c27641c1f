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

StepLine::StepLine(const StepCost& cost, const StepPrecision& precision, double factor)
    : cost_(cost), logits_(cost.logits_at(precision.embeddings)), s_per_us_(factor / kUsPerS) {
  for (std::size_t i = 0; i < precision.layers.size(); ++i) {
    if (precision.layers[i] > 0) {
      terms_[count_++] = {cost.layers[i], precision.layers[i]};
    }
  }
}

double StepLine::step_s(const Batch& batch) const {
  const double tokens = batch.decoding + batch.prompt_tokens;
  const double sequences = batch.decoding + (batch.prompt_tokens > 0 ? 1 : 0);
  const double kv = batch.context_tokens + batch.decoding + batch.prompt_tokens;
  const double context =
      batch.context_tokens + batch.decoding + batch.prompt_tokens * (batch.prompt_tokens + 1) / 2;
  double us = cost_.fixed_us + cost_.token_us * tokens +
              attention_us(cost_, context, sequences, kv) + logits_.row_us * sequences +
              (sequences > 0 ? logits_.step_us : 0);
  for (std::size_t i = 0; i < count_; ++i) {
    us += terms_[i].share * layers_us(terms_[i].cost, tokens);
  }
  return us * s_per_us_;
}

double StepSpeed::prefill_s(const StepPrecision& precision, double prompt_tokens,
                            const Batch& running) const {
  const double room = std::max(1.0, most_step_tokens_ - running.decoding);
  const double full_steps = std::floor(prompt_tokens / room);
  const double rest = prompt_tokens - full_steps * room;
  const StepLine line = line_of(precision);
  const auto of = [&](double tokens) {
    return line.step_s({running.decoding, running.context_tokens, tokens});
  };
  return (full_steps > 0 ? full_steps * of(room) : 0) + (rest > 0 ? of(rest) : 0);
}

double StepSpeed::copy_bytes_per_s() const {
  constexpr double kGuess = 5e8;
  return cost_.copy_bytes_per_us > 0 ? cost_.copy_bytes_per_us * kUsPerS : kGuess;
}

int StepSpeed::prompt_tokens_within(const StepPrecision& precision, double step_s_wanted,
                                    const Batch& running) const {
  const StepLine line = line_of(precision);
  const auto of = [&](int tokens) {
    return line.step_s({running.decoding, running.context_tokens, static_cast<double>(tokens)});
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
