#pragma once

#include <cstdint>

#include "base/units.h"

namespace protean {

// What an engine knows after each event at no cost. Holds until the next sample. *_total only grow,
// the rest is now.
struct LoadSample {
  TimeNs at_ns = 0;
  int running = 0;
  int waiting = 0;
  TimeNs oldest_wait_ns = 0;  // of the sequence that waits longest, 0 if none does
  // Until a prompt that came now would begin, behind all that are here, if steps go on as they do;
  // 0 behind one alone, which is no queue however long it is. As of the last look at all sequences.
  TimeNs expected_wait_ns = 0;
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_used = 0;
  // What waiting sequences and the next decodes need and do not hold, whether or not it is free:
  // used + wanted is the demand.
  std::int64_t blocks_wanted = 0;
  // The last step took as many tokens as it might: more blocks would not have made it larger.
  bool step_full = false;
  // What all tokens computed so far would have taken in full steps of the first form.
  std::int64_t full_work_ns_total = 0;
  std::int64_t preemptions_total = 0;
  std::int64_t arrivals_total = 0;
  std::int64_t arrived_tokens_total = 0;  // of prompts
};

}  // namespace protean
