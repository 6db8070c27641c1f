#include "control/policy_options.h"

namespace protean {

PolicyOptions options_for(MorphMode mode) {
  PolicyOptions options;
  if (mode == MorphMode::kAccuracy) {
    options.kv_high = 0.95;
    options.entry_window_ns = 3 * kNsPerS;
    options.longest_step = 0.125;
    options.lowest = Precision::kW8;
    options.lowest_share = 1.0;
  } else if (mode == MorphMode::kPerformance) {
    options.entry_window_ns = 500 * kNsPerMs;
    options.queue.alone_ns = 100 * kNsPerMs;
    options.shortest_step = 1;
    options.lowest = Precision::kW3;
    options.lowest_share = 1.0;
  }
  return options;
}

PolicyOptions where_fewer_bits_are_faster(PolicyOptions options, TimeNs slo_ttft_ns,
                                          bool four_than_eight) {
  QueueOptions& queue = options.queue;
  queue.fewer_bits_are_faster = true;
  queue.expected_ns = queue.alone_ns > 0 ? queue.alone_ns : slo_ttft_ns / 4;
  if (queue.alone_ns == 0) {
    queue.alone_ns = slo_ttft_ns / 8;
  }
  queue.beyond_ns = slo_ttft_ns / 4;
  // What goes in two steps is swapped twice: rather a little far at once.
  options.fill_after_entry = 0.8;
  if (four_than_eight) {
    queue.beyond_alone = true;
    options.lowest_share = 1.0;  // the end is reached only when little else is left
  }
  return options;
}

}  // namespace protean
