#pragma once

#include <cstdint>

namespace protean {

// What a replica looks like after a step. *_total only grow, the rest is now.
struct Observation {
  int running = 0;
  int waiting = 0;
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_used = 0;  // referenced by a live request; cached-only blocks are free
  std::int64_t preemptions_total = 0;
  std::int64_t prefix_query_tokens_total = 0;
  std::int64_t prefix_hit_tokens_total = 0;
  std::int64_t steps_total = 0;
  std::int64_t prompt_tokens_total = 0;  // computed or found in cache, at first admission
  std::int64_t output_tokens_total = 0;
  int step_tokens = 0;  // tokens of the step just done, 0 if none
};

}  // namespace protean
