#include "control/policy_options.h"

namespace protean {

PolicyOptions options_for(MorphMode mode) {
  PolicyOptions options;
  if (mode == MorphMode::kAccuracy) {
    options.kv_high = 0.95;
    options.entry_window_ns = 3 * kNsPerS;
    options.fill_after_entry = 1.0;
    options.longest_step = 0.125;
    options.lowest = Precision::kW8;
    options.release_window_ns = 3 * kNsPerS;
  } else if (mode == MorphMode::kPerformance) {
    options.entry_window_ns = 300 * kNsPerMs;
    options.queue_alone_ns = 100 * kNsPerMs;
    options.fill_after_entry = 0.7;
    options.longest_step = 1.0;
    options.lowest = Precision::kW3;
    options.release_window_ns = 6 * kNsPerS;
    options.release_fill = 0.6;
  }
  return options;
}

}  // namespace protean
