#pragma once

#include <span>

#include "base/result.h"
#include "cost/step_time.h"

namespace protean {

// A step that was timed, and the layers it ran through.
struct TimedStep {
  StepWork work;
  LayerShares layers{};
  double us = 0;
};

// The cost model that comes nearest to the steps: least squares of relative errors, over every
// place where layers' cost may bend and every size that a kernel's tile may have. fixed_us and
// token_us stay 0, because steps of one model cannot tell them from what its layers take. Fails
// where the steps are too few or too much alike to tell two terms apart, and says which; precisions
// that no step has are left out.
Result<StepCost> fit_step_cost(std::span<const TimedStep> steps);

// Whether the model knows every precision that has a share.
bool covers(const StepCost& cost, const LayerShares& layers);

struct PredictionError {
  double mean = 0;  // of |predicted - measured| / measured
  double worst = 0;
  int steps = 0;
};

// Over steps of at least so many tokens.
PredictionError prediction_error(const StepCost& cost, std::span<const TimedStep> steps,
                                 int least_tokens = 1);

}  // namespace protean
