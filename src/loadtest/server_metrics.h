#pragma once

#include <optional>
#include <string_view>

#include "base/units.h"

namespace protean::loadtest {

// What a server said of itself in /metrics, under vLLM's names, summed over labels.
struct ServerMetrics {
  std::optional<double> kv_use;   // 0 to 1; the mean where several engines report
  std::optional<double> running;  // requests
  std::optional<double> waiting;
  std::optional<double> ttft_sum_s;  // of its histogram since it started
  std::optional<double> ttft_count;
};
ServerMetrics parse_server_metrics(std::string_view text);  // Prometheus text format
bool has_any(const ServerMetrics& metrics);

struct ServerSample {
  TimeNs at_ns = 0;  // from the start of the run
  ServerMetrics metrics;
};

}  // namespace protean::loadtest
