#include "control/step_speed.h"

#include <algorithm>
#include <cmath>

#include "cost/prompt_steps.h"

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

double StepSpeed::step_s(const StepPrecision& precision, const StepWork& work) const {
  return predict_us(cost_, work, precision) * correction_.factor(precision.layers) / kUsPerS;
}

double StepSpeed::corrected_s(const StepCost& cost, const StepPrecision& precision,
                              const Batch& batch) const {
  const PromptWork& prompt = batch.prompt;
  // Returns the positions that layers see of so many, in the mean over layers.
  const auto seen = [&](double positions, double rows) {
    const double unseen = std::max(0.0, positions - precision.window_tokens - rows + 1);
    return positions - precision.windowed_share * unseen;
  };
  const double decoding = std::max(batch.decoding, 1e-9);
  const double context_tokens =
      decoding * seen((batch.context_tokens + batch.decoding) / decoding, 1);
  // A step has a chunk of each of its prompts. The last token of one attends to half a chunk more
  // than the mean.
  const double chunks = prompt.tokens > 0 ? std::max(1.0, prompt.prompts) : 0;
  const double chunk = prompt.tokens / std::max(1.0, chunks);
  const double attended = prompt.tokens > 0 ? prompt.context_tokens / prompt.tokens : 0;
  const StepWork work{
      .tokens = batch.decoding + prompt.tokens,
      .sequences = batch.decoding + chunks,
      .logit_rows = batch.decoding + prompt.prompts,
      .context_tokens = context_tokens + prompt.tokens * seen(attended, 1),
      .kv_tokens = context_tokens + chunks * seen(attended + (chunk - 1) / 2, chunk)};
  return predict_us(cost, work, precision) * correction_.factor(precision.layers) / kUsPerS;
}

double StepSpeed::passing_s(const StepPrecision& precision, const Batch& batch) const {
  return std::max(0.0, corrected_s(path_, precision, batch) - corrected_s(cost_, precision, batch));
}

double StepSpeed::prefill_s(const StepPrecision& precision, const Batch& batch) const {
  const PromptWork& prompt = batch.prompt;
  const Batch alone{.prompt = prompt};
  const double stage_s = corrected_s(cost_, precision, alone);
  if (prompt.tokens <= 0 || stage_s <= 0) {
    return 0;
  }
  const double stages = std::max(1.0, std::round(corrected_s(path_, precision, alone) / stage_s));
  const double room = std::max(1.0, most_step_tokens_ - batch.decoding / stages);
  const double steps = prompt_steps(prompt.tokens, stages, room);
  const Batch step{batch.decoding / stages, batch.context_tokens / stages, prompt * (1 / steps)};
  return steps * step_s(precision, step) + passing_s(precision, step);
}

double StepSpeed::copy_bytes_per_s() const {
  // Where no copy was timed: low for any machine, so that no morph pays less than it is predicted
  // to.
  constexpr double kUntimedBytesPerS = 5e8;
  return cost_.copy_bytes_per_us > 0 ? cost_.copy_bytes_per_us * kUsPerS : kUntimedBytesPerS;
}

int StepSpeed::prompt_tokens_within(const StepPrecision& precision, double step_s_wanted,
                                    const Batch& batch) const {
  const auto of = [&](double tokens) {
    const PromptWork prompt =
        batch.prompt.tokens > 0 ? batch.prompt.part(tokens) : prompt_work(tokens);
    return step_s(precision, {batch.decoding, batch.context_tokens, prompt});
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
