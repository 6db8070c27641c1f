#pragma once

#include "contract/step.h"

namespace protean {

// Time of a step as a fixed part, a part per token computed and a part per token of context that
// attention reads (KunServe section 4.2, equations 1 to 3, without their quadratic prefill term: a
// chunk's context is counted token by token here).
struct StepCost {
  double fixed_us = 0;
  double token_us = 0;
  double context_token_us = 0;
};

double predict_us(const StepCost& cost, const StepPlan& plan);

}  // namespace protean
