#pragma once

#include <optional>
#include <string_view>

#include "base/units.h"

namespace protean::loadtest {

// A server's metrics under vLLM's names, summed over labels.
struct ServerMetrics {
  std::optional<double> kv_use;   // 0 to 1, the mean over engines
  std::optional<double> running;  // requests
  std::optional<double> waiting;
  std::optional<double> ttft_sum_s;  // sum of the TTFT histogram since the server started
  std::optional<double> ttft_count;
};
// Parses Prometheus's text format.
ServerMetrics parse_server_metrics(std::string_view text);
bool has_any(const ServerMetrics& metrics);

struct ServerSample {
  TimeNs at_ns = 0;  // since the start of the run
  ServerMetrics metrics;
};

}  // namespace protean::loadtest
