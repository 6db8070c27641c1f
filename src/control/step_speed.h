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

// The times that a step ended after.
struct StepTimes {
  TimeNs since_start_ns = 0;
  TimeNs since_last_ns = 0;  // since the step before it ended
};

// Predicts what steps take at any precision: the machine's StepCost, corrected by the steps that it
// computes. If the cost is not known, predicts 0.
class StepSpeed {
 public:
  // In a pipeline, `cost` is what the slowest stage takes, and `path` what a step takes through all
  // stages, one after the other. Without a `path` there is one stage.
  StepSpeed(const StepCost& cost, int most_step_tokens, const StepCost& path = {})
      : cost_(cost), path_(path.is_known() ? path : cost), most_step_tokens_(most_step_tokens) {}

  // Returns the speed of steps with another cost, corrected by what was learned here.
  StepSpeed at_cost(const StepCost& cost, const StepCost& path = {}) const {
    StepSpeed other(cost, most_step_tokens_, path);
    other.correction_ = correction_;
    return other;
  }

  bool has_learned() const { return correction_.factor(LayerShares{}) != 1; }
  StepSpeed taught_by(const StepSpeed& other) const { return other.at_cost(cost_, path_); }
  // Learns from a step. A step ends at the later of two times: once it has passed all stages, and
  // once the slowest has computed it after the step before. So it teaches the same in a pipeline
  // that is full and in one that it has for itself.
  void step_done(const StepWork& work, const StepPrecision& precision, const StepTimes& took);

  // Predicts the time from the end of a step to the end of the next one.
  double step_s(const StepPrecision& precision, const Batch& batch) const;
  double step_s(const StepPrecision& precision, const StepWork& work) const;

  // Predicts by how much the last of steps that follow each other ends later, because it passes
  // all stages: 0 if there is one stage.
  double passing_s(const StepPrecision& precision, const Batch& batch) const;

  // Predicts the time to compute all of the batch's prompts, in prompt_steps(), while its sequences
  // decode, through all stages.
  double prefill_s(const StepPrecision& precision, const Batch& batch) const;

  // Returns how many tokens of the batch's prompts a step can take within `step_s` while its
  // sequences decode. If the decodes alone take more than half of that, prompts get as much time as
  // the decodes. If the batch has no prompts, takes them for one.
  int prompt_tokens_within(const StepPrecision& precision, double step_s, const Batch& batch) const;

  // Returns how fast a morph reads variants, as far as is known before it has read any.
  double copy_bytes_per_s() const;

  int most_step_tokens() const { return most_step_tokens_; }

 private:
  double corrected_s(const StepCost& cost, const StepPrecision& precision,
                     const Batch& batch) const;

  StepCost cost_;
  StepCost path_;
  int most_step_tokens_;
  StepCorrection correction_;
};

}  // namespace protean
