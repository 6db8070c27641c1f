#pragma once

#include <cstdint>

namespace protean {

// The state of a replica after a step. Fields named *_total only grow.
struct Observation {
  int running = 0;
  int waiting = 0;
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_used = 0;  // by live requests; blocks that are only cached count as free
  std::int64_t preemptions_total = 0;
  std::int64_t prefix_query_tokens_total = 0;
  std::int64_t prefix_hit_tokens_total = 0;
  std::int64_t steps_total = 0;
  std::int64_t prompt_tokens_total =
      0;  // computed or found in the prefix cache, at first admission
  std::int64_t output_tokens_total = 0;
  int step_tokens = 0;  // of the step just done, 0 if none
};

}  // namespace protean
