#pragma once

#include <string>

namespace protean {

// This process's memory, CPU time and open files in Prometheus' text format, under the names that
// every Prometheus client library uses. Reads /proc.
std::string process_metrics();

}  // namespace protean
