#pragma once

#include <cstdint>

#include "base/units.h"
#include "control/answer_lengths.h"
#include "control/step_speed.h"
#include "scheduler/scheduler.h"

namespace protean {

// Predicts how long requests of a replica wait, from what its steps cost in the present form and
// how long its answers are. Deadlines, refusals and the length of steps during a morph ask it. If
// the cost of steps is not known, predicts 0. O(1). Pure.
class QueueTimes {
 public:
  QueueTimes(const StepSpeed& speed, const StepPrecision& precision)
      : speed_(speed), precision_(precision) {}

  // Sets the precisions of steps planned from now on.
  void set_precision(const StepPrecision& precision) { precision_ = precision; }
  const StepPrecision& precision() const { return precision_; }

  void step_done(const StepWork& work, const StepPrecision& precision, const StepTimes& took) {
    speed_.step_done(work, precision, took);
  }
  void answer_done(int prompt_tokens, int answer_tokens) {
    lengths_.done(prompt_tokens, answer_tokens);
  }

  // Predicts the time to compute a prompt alone.
  TimeNs prefill_ns(const PromptWork& prompt) const;

  // Returns how many prompt tokens a step can take within `step_s` in addition to the decodes of
  // `running`, at least 16: fewer hardly take less time.
  int prompt_tokens_within(double step_s, const Backlog& running) const;

  // Predicts the time to the first token of a request with this prompt, after `before`.
  TimeNs first_token_ns(const Backlog& before, const PromptWork& prompt) const;

  // Takes over what another engine has learned of the length of answers, and if this one has
  // learned nothing of the speed of steps, also that.
  void learn(const QueueTimes& other) {
    lengths_ = other.lengths_;
    speed_ = speed_.has_learned() ? speed_ : speed_.taught_by(other.speed_);
  }

  const StepSpeed& speed() const { return speed_; }
  const AnswerLengths& lengths() const { return lengths_; }

 private:
  StepSpeed speed_;
  StepPrecision precision_;
  AnswerLengths lengths_;
};

}  // namespace protean
