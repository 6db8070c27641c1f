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
  Interval interval;         // of the ratio, 95 %
  bool significant = false;  // 1 is outside of it
  bool higher_is_better = false;
};

// Latencies are drawn again from the records of requests, throughputs from equal pieces of the
// run's time. Requests of one run are taken to be independent of one another, which those that
// waited in the same queue are not: intervals are narrower than those of repeated runs.
std::vector<ComparedMeasure> compare_runs(const RecordedRun& a, const RecordedRun& b,
                                          const BootstrapOptions& options);

// Names what differs between the loads of two runs, a line each: how requests arrived, what they
// asked for, and the planned lengths of requests with the same index.
std::vector<std::string> load_differences(const RecordedRun& a, const RecordedRun& b);

std::string comparison_table(const RecordedRun& a, const RecordedRun& b,
                             const std::vector<ComparedMeasure>& measures);

}  // namespace protean::loadtest
