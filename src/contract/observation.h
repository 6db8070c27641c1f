#pragma once

#include <cstdint>
#include <span>

#include "contract/device_use.h"

namespace protean {

// The state of a replica after a step. Fields named *_total only grow.
struct Observation {
  int running = 0;
  int waiting = 0;
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_used = 0;  // by live requests; blocks that are only cached count as free
  std::int64_t kv_blocks_awaited = 0;  // needed by waiting requests, prefix cache hits not counted
  std::int64_t preemptions_total = 0;
  std::int64_t prefix_query_tokens_total = 0;
  std::int64_t prefix_hit_tokens_total = 0;
  std::int64_t steps_total = 0;
  // Prompt tokens that were computed or found in the prefix cache at their first admission.
  std::int64_t prompt_tokens_total = 0;
  std::int64_t output_tokens_total = 0;
  std::int64_t accepted_total = 0;         // requests that the router gave to this replica
  std::int64_t adopted_total = 0;          // requests that came from other replicas
  std::int64_t adopted_with_kv_total = 0;  // those of them whose KV was copied while they decoded
  std::int64_t released_total = 0;         // requests that went to other replicas
  int step_tokens = 0;                     // tokens of the step just done, 0 if none
  // Predicted queue time of a request that arrived now; 0 without a queue. A tenth of a second old
  // at most while events come.
  std::int64_t expected_wait_ns = 0;
  DeviceUse devices;  // nothing is counted for a device alone
};

// Returns the state of several replicas together; a new request waits in the quickest of them. A
// request waits for the replica that is soonest.
Observation sum_of(std::span<const Observation> replicas);

}  // namespace protean
