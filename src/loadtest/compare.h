#pragma once

#include <string>
#include <vector>

#include "loadtest/report_json.h"
#include "loadtest/statistics.h"

namespace protean::loadtest {

struct ComparedMeasure {
  std::string name;  // "TTFT P99"
  std::string unit;
  double a = 0;
  double b = 0;
  double ratio = 1;          // b / a
  Interval interval;         // 95 % confidence interval of the ratio
  bool significant = false;  // the interval does not contain 1
  bool higher_is_better = false;
};

// Compares throughputs and latencies. Intervals are bootstrapped: latencies over requests,
// throughputs over equal pieces of the run's time. This takes the requests of a run as independent,
// which requests in one queue are not: intervals of repeated runs would be wider.
std::vector<ComparedMeasure> compare_runs(const RecordedRun& a, const RecordedRun& b,
                                          const BootstrapOptions& options);

// Returns one line for each difference between the loads of two runs: the endpoint, arrivals,
// prompts, seed, and planned lengths of requests with the same index.
std::vector<std::string> load_differences(const RecordedRun& a, const RecordedRun& b);

std::string comparison_table(const RecordedRun& a, const RecordedRun& b,
                             const std::vector<ComparedMeasure>& measures);

}  // namespace protean::loadtest
