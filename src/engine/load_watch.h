#pragma once

#include <cstdint>

#include "base/units.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "control/arrival_rate.h"
#include "control/load.h"
#include "control/rolling_window.h"
#include "engine/queue_times.h"
#include "scheduler/scheduler.h"

namespace protean {

// Watches what a replica has to do and how long its clients wait (MorphServe's Serving Monitor,
// section 4.1). Single-threaded; times must not go back.
class LoadWatch {
 public:
  void arrived(TimeNs now_ns, std::int64_t prompt_tokens) {
    arrivals_.arrived(now_ns, prompt_tokens);
  }
  void first_token(TimeNs now_ns, TimeNs ttft_ns) { ttft_.add(now_ns, ttft_ns); }
  void next_token(TimeNs now_ns, TimeNs tpot_ns) { tpot_.add(now_ns, tpot_ns); }

  // Returns the load as predictions need it. Looks at every sequence.
  Load load(TimeNs now_ns, const Scheduler& scheduler, const AnswerLengths& lengths,
            int block_tokens) const;

  // Returns a load as operators see it, with present latencies.
  LoadSeen seen(TimeNs now_ns, const Load& load, TimeNs expected_wait_ns) const;

 private:
  static constexpr TimeNs kLatencyWindowNs = 15 * kNsPerS;

  ArrivalRate arrivals_;
  RollingQuantile ttft_{kLatencyWindowNs};
  RollingQuantile tpot_{kLatencyWindowNs};
};

}  // namespace protean
