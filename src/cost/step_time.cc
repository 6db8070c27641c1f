#include "cost/step_time.h"

namespace protean {

double predict_us(const StepCost& cost, const StepPlan& plan) {
  double context_tokens = 0;
  for (const SequenceSlice& slice : plan.slices) {
    // The i-th token of the slice reads first_position + i + 1 positions.
    const double count = slice.token_count;
    context_tokens += count * slice.first_position + count * (count + 1) / 2;
  }
  return cost.fixed_us + cost.token_us * static_cast<double>(plan.tokens.size()) +
         cost.context_token_us * context_tokens;
}

}  // namespace protean
