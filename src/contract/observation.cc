#include "contract/observation.h"

#include <algorithm>

namespace protean {

Observation sum_of(std::span<const Observation> replicas) {
  Observation sum;
  sum.expected_wait_ns = replicas.empty() ? 0 : replicas.front().expected_wait_ns;
  for (const Observation& one : replicas) {
    sum.running += one.running;
    sum.waiting += one.waiting;
    sum.kv_blocks += one.kv_blocks;
    sum.kv_blocks_used += one.kv_blocks_used;
    sum.kv_blocks_awaited += one.kv_blocks_awaited;
    sum.preemptions_total += one.preemptions_total;
    sum.prefix_query_tokens_total += one.prefix_query_tokens_total;
    sum.prefix_hit_tokens_total += one.prefix_hit_tokens_total;
    sum.steps_total += one.steps_total;
    sum.prompt_tokens_total += one.prompt_tokens_total;
    sum.output_tokens_total += one.output_tokens_total;
    sum.accepted_total += one.accepted_total;
    sum.adopted_total += one.adopted_total;
    sum.adopted_with_kv_total += one.adopted_with_kv_total;
    sum.released_total += one.released_total;
    sum.step_tokens += one.step_tokens;
    sum.expected_wait_ns = std::min(sum.expected_wait_ns, one.expected_wait_ns);
    sum.devices += one.devices;
  }
  return sum;
}

}  // namespace protean
