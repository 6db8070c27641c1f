#pragma once

#include <span>

#include "base/result.h"
#include "cost/step_time.h"

namespace protean {

// A step with its measured time and the precisions of the layers that it ran through.
struct TimedStep {
  StepWork work;
  StepPrecision precision;
  double us = 0;
};

// Fits the cost model to the steps: least squares of relative errors, for every place of the bend
// and every tile size of each precision. fixed_us and token_us stay 0, because steps of one model
// cannot tell them from the time of its layers. Leaves out precisions that no step has. If the
// steps are too few or too much alike to determine a term, fails and names it.
Result<StepCost> fit_step_cost(std::span<const TimedStep> steps);

// True if the cost of every precision that has a share, and of the LM head's, is known.
bool covers(const StepCost& cost, const StepPrecision& precision);

struct PredictionError {
  double mean = 0;  // of |predicted - measured| / measured
  double worst = 0;
  int steps = 0;
};

// Returns the error over steps of at least `least_tokens` tokens.
PredictionError prediction_error(const StepCost& cost, std::span<const TimedStep> steps,
                                 int least_tokens = 1);

}  // namespace protean
