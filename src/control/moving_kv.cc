#include "control/moving_kv.h"

#include <algorithm>

#include "control/predict.h"

namespace protean {
namespace {

// Returns the seconds by which all steps together take longer if they compute a prompt.
double added_seconds(const StepSpeed& speed, const StepPrecision& precision, const Batch& batch,
                     const PromptWork& prompt) {
  const double room = std::max(1.0, speed.most_step_tokens() - batch.decoding);
  Batch full = batch;
  full.prompt = prompt.part(room);
  return (speed.step_s(precision, full) - speed.step_s(precision, batch)) * prompt.tokens / room;
}

// Returns the seconds that requests wait less in total for KV that does not move.
double saved_seconds(const StepSpeed& speed, const StepPrecision& precision, const KvChange& change,
                     const MovingKv& kv) {
  return change.requests * kv.seconds -
         change.sharing * added_seconds(speed, precision, change.batch, kv.prompt);
}

}  // namespace

bool pays_to_compute_again(const StepSpeed& speed, const StepPrecision& precision,
                           const KvChange& change, const MovingKv& kv) {
  // One step comes before the first piece of KV that moves, and one after each.
  const double pieces = std::max(1.0, change.seconds / kShortStepS);
  const double step_s = speed.step_s(precision, change.batch);
  return step_s > 0 && saved_seconds(speed, precision, change, kv) > (1 + pieces) * step_s;
}

bool pays_to_forget(const StepSpeed& speed, const StepPrecision& precision, const KvChange& change,
                    const MovingKv& kv) {
  return speed.step_s(precision, change.batch) > 0 &&
         saved_seconds(speed, precision, change, kv) > 0;
}

}  // namespace protean
