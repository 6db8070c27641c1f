#pragma once

#include <cstdint>

#include "base/units.h"
#include "cost/prompt_work.h"
#include "cost/step_correction.h"
#include "cost/step_time.h"
#include "cost/step_work.h"

namespace protean {

// The batch of a step, as far as its time depends on it.
struct Batch {
  double decoding = 0;        // sequences that get a token each
  double context_tokens = 0;  // tokens in KV of all these sequences
  PromptWork prompt;          // the part of prompts that is computed in the same step
};

// Predicts what steps take at any precision: the machine's StepCost, corrected by the steps that it
// computes. If the cost is not known, predicts 0.
class StepSpeed {
 public:
  StepSpeed(const StepCost& cost, int most_step_tokens)
      : cost_(cost), most_step_tokens_(most_step_tokens) {}

  // Returns the speed of steps with another cost, corrected by what was learned here.
  StepSpeed at_cost(const StepCost& cost) const {
    StepSpeed other = *this;
    other.cost_ = cost;
    return other;
  }

  bool has_learned() const { return correction_.factor(LayerShares{}) != 1; }
  StepSpeed taught_by(const StepSpeed& other) const { return other.at_cost(cost_); }
  void step_done(const StepWork& work, const StepPrecision& precision, TimeNs took_ns);

  double step_s(const StepPrecision& precision, const Batch& batch) const;

  // Predicts the time to compute all of the batch's prompts, in as many steps as they need, while
  // its sequences decode.
  double prefill_s(const StepPrecision& precision, const Batch& batch) const;

  // Returns how many tokens of the batch's prompts a step can take within `step_s` while its
  // sequences decode. If the decodes alone take more than half of that, prompts get as much time as
  // the decodes. If the batch has no prompts, takes them for one.
  int prompt_tokens_within(const StepPrecision& precision, double step_s, const Batch& batch) const;

  // Returns how fast a morph reads variants, as far as is known before it has read any.
  double copy_bytes_per_s() const;

  int most_step_tokens() const { return most_step_tokens_; }

 private:
  StepCost cost_;
  int most_step_tokens_;
  StepCorrection correction_;
};

}  // namespace protean
