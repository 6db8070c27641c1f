#pragma once

#include <functional>
#include <span>

#include "base/result.h"
#include "cost/step_time.h"

namespace protean {

// A step with its measured time and the precisions of the layers that it ran through. For a step
// through some of the model's layers only (in_layers()), counts and shares are those of that part.
struct TimedStep {
  StepWork work;
  StepPrecision precision;
  double us = 0;
};

// Returns the work and the precision, with layers, positions and KV counted for `layers` of the
// `of` layers of the model.
TimedStep in_layers(TimedStep step, int layers, int of);

// Fits the cost model to the steps: least squares of relative errors, for every place of the bend
// and every tile size of each precision. Leaves out precisions that no step has. fixed_us and
// token_us are the time outside of the layers: steps through different numbers of layers tell it
// (iServe section 5.3, equations 2 and 3), and without such steps both stay 0. If the steps are too
// few or too much alike to determine a term, fails and names it. `goes_on` is asked before each of
// several hundred fits, may wait, and ends the work with kUnavailable if it returns false.
Result<StepCost> fit_step_cost(std::span<const TimedStep> steps,
                               const std::function<bool()>& goes_on = {});

// True if the cost of every precision that has a share, and of the LM head's, is known.
bool covers(const StepCost& cost, const StepPrecision& precision);

struct PredictionError {
  double mean = 0;  // mean of |predicted - measured| / measured
  double worst = 0;
  int steps = 0;
};

// Returns the error over steps of at least `least_tokens` tokens.
PredictionError prediction_error(const StepCost& cost, std::span<const TimedStep> steps,
                                 int least_tokens = 1);

}  // namespace protean
