#include "fleet/held_request.h"

#include <algorithm>

namespace protean {

void HeldRequest::weights_replaced() {
  if (moved && moved->sequence->usage.output_tokens > 0) {
    refusal = "its model's weights were replaced";
  }
}

TimeNs HeldRequest::expires_ns() const {
  const bool begun = moved && moved->live.times.scheduled_ns >= 0;
  const TimeNs first_ns = begun ? -1 : asks().deadlines.first_token_ns;
  const TimeNs finish_ns = asks().deadlines.finish_ns;
  return first_ns < 0 ? finish_ns : finish_ns < 0 ? first_ns : std::min(first_ns, finish_ns);
}

Finished HeldRequest::ended(FinishReason reason, TimeNs now_ns) const {
  Finished finished{.request = asks().id, .reason = reason};
  finished.usage.prompt_tokens = static_cast<int>(prompt_tokens());
  finished.times = {.arrived_ns = arrived_ns};
  if (moved) {
    finished.usage = moved->sequence->usage;
    finished.usage.output_at = moved->live.drawn_before;
    finished.times = moved->live.times;
  }
  finished.times.finished_ns = now_ns;
  return finished;
}

}  // namespace protean
