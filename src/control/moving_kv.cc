#include "control/moving_kv.h"

#include <algorithm>

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

}  // namespace

bool pays_to_compute_again(const StepSpeed& speed, const StepPrecision& precision,
                           const KvChange& change, const MovingKv& kv) {
  return speed.step_s(precision, change.batch) > 0 &&
         change.requests * kv.seconds >
             kv.wait_s + change.sharing * added_seconds(speed, precision, change.batch, kv.prompt);
}

}  // namespace protean
