#include "control/moving_kv.h"

#include <algorithm>

namespace protean {

bool pays_to_compute_again(const StepSpeed& speed, const StepPrecision& precision,
                           const KvChange& change, const MovingKv& kv) {
  const double decode_s = speed.step_s(precision, change.batch);
  const double room = std::max(1.0, speed.most_step_tokens() - change.batch.decoding);
  Batch full = change.batch;
  full.prompt = kv.prompt.part(room);
  const double steps = kv.prompt.tokens / room;
  const double prompt_s = steps * (speed.step_s(precision, full) - decode_s);
  return decode_s > 0 && change.requests * kv.seconds > kv.wait_s + change.sharing * prompt_s +
                                                            change.queued * steps * decode_s;
}

}  // namespace protean
